# GPT-2 trainer. `make help` lists the targets.
#
# Variables: GPU_ARCH=native builds for the card of this machine alone; DEBUG=1 adds -g -O1; NO_OPENMP=1 builds
# single-threaded; TEXT=path is the default training text; CC, NVCC choose compilers.
NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
PYTHON ?= python3

WARNINGS = -Wall -Wextra -Werror -Wshadow -Wno-unused-parameter
OPTIMISE = $(if $(DEBUG),-g -O1,-O3 -march=native)
OPENMP := $(if $(NO_OPENMP),,$(shell echo 'int main(void){return 0;}' | $(CC) -fopenmp -x c - -o /dev/null 2>/dev/null && echo -fopenmp))
# -fno-math-errno lets sqrtf and friends become instructions; nothing here relaxes NaN, inf or rounding.
CFLAGS_ALL = -std=c11 -D_GNU_SOURCE $(OPTIMISE) -fno-math-errno -ffp-contract=fast $(OPENMP) $(WARNINGS) -MMD -MP $(CFLAGS)
LIBS = -lm -lpthread

# sm_80 runs on every card from A100 to Ada, sm_90a on Hopper, PTX is compiled by the driver of later cards.
ifeq ($(GPU_ARCH),native)
ARCHS = -arch=native
else
ARCHS = -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=compute_80
endif
NVCCFLAGS = -std=c++17 -O3 $(ARCHS) -Xcompiler -Wall,-Wextra,-Wno-unused-parameter,-Werror -Werror all-warnings \
	--expt-relaxed-constexpr -MMD -MP $(if $(DEBUG),-lineinfo -g)
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcublasLt -Xlinker -rpath -Xlinker $(CUDA_HOME)/lib64

CORE_SRC := $(filter-out llmc/cpu/no_cuda.c,$(wildcard llmc/*.c llmc/cpu/*.c))
CUDA_SRC := $(wildcard llmc/cuda/*.cu llmc/cuda/attention/*.cu)
TEST_SRC := $(wildcard dev/test/test_*.c)
CORE_OBJ := $(CORE_SRC:%.c=build/%.o)
CUDA_OBJ := $(CUDA_SRC:%.cu=build/%.o)
STUB_OBJ := build/llmc/cpu/no_cuda.o

# Tests link the CUDA backend where nvcc is, so that one set of programs checks all that a machine has.
ifneq ($(NVCC),)
BACKEND_OBJ = $(CUDA_OBJ)
LINK = $(NVCC) $(ARCHS) $(if $(OPENMP),-Xcompiler -fopenmp)
LINK_LIBS = $(LIBS) $(CUDA_LIBS)
TEST_MAIN = build/test_gpt2cu
else
BACKEND_OBJ = $(STUB_OBJ)
LINK = $(CC) $(CFLAGS_ALL)
LINK_LIBS = $(LIBS)
TEST_MAIN = build/test_gpt2
endif
TESTS := $(TEST_SRC:dev/test/%.c=build/%)

.PHONY: help test dev data bench lint sanitize clean
help:
	@sed -n 's/^#: //p' Makefile

# The two programs at the top level are plain C; the suffix .cu says which trainer they are. Only llmc/cuda needs nvcc.
build/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -c $< -o $@
build/train_gpt2.o build/test_gpt2.o: build/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -x c -c $< -o $@
build/llmc/cuda/%.o: llmc/cuda/%.cu Makefile
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -c $< -o $@

$(TESTS): build/%: build/dev/test/%.o $(CORE_OBJ) $(BACKEND_OBJ)
	$(LINK) $^ -o $@ $(LINK_LIBS)
.PRECIOUS: build/%.o

clean:
	rm -rf build train_gpt2 train_gpt2cu test_gpt2 test_gpt2cu dev/lab

-include $(shell find build -name '*.d' 2>/dev/null)
