# GPT-2 trainer in C and CUDA.
#
#: make train_gpt2cu     the trainer (CUDA and CPU); also puts a default text into data/
#: make train_gpt2       the same program for the CPU alone, no nvcc needed
#: make test             everything that this machine can check; ends with 'N passed, N failed, N skipped'
#: make data             lists the data sets; make data/tinyshakespeare and so on prepare one
#: make dev              dev/lab: checks and times every op and every variant of it; build/bench_cpu
#: make tables           the tables and plots of the ladder of attention, on this machine's card: dev/results/
#: make bench            times the trainer's CUDA ops and a training step of GPT-2 124M on this machine's card
#: make compare          attention and training steps beside PyTorch, on the same card in the same run (needs torch; 21 minutes)
#: make flags            the flag table of llmc/run/FLAGS.md, from the program
#: make lint             format, warnings of gcc and clang, length of functions, layers of folders; NVCC= leaves out the kernels (minutes)
#: make mutants          some hundred small faults, one at a time: does a test see each? (dev/mutants/README.md)
#: make delays           on a Hopper card: the tests of ops and of decoding with kernels that pause at barriers, against the bits without
#: make sanitize         the CPU tests under AddressSanitizer and UndefinedBehaviorSanitizer
#: make soak             kills, signals, damaged files, flag combinations and ranks by the thousand (KILLS=, TERMS=, DAMAGED=, FLAGS=, RANKS=, JOBS=, SEED=)
#: make clean
#:
#: TEXT=path         the default training text, in place of TinyShakespeare
#: GPU_ARCH=all      builds for every card, not for those of this machine alone; GPU_ARCH=90a, or '80 90a', names kinds
#: -jN               at most N commands at once (unasked, as many as there are cores)
#: NO_OPENMP=1       builds without OpenMP;  DEBUG=1  -O1 and symbols;  CC=, NVCC=  other compilers;  V=1  prints the commands
#: BOUNDED_WAIT=1    builds Hopper kernels in which a wait that never ends stops with an error, for new kernels in the lab
#: DELAYS=1          builds Hopper kernels that pause at barriers, for make delays
#: WERROR=1          a warning of a compiler is an error
#: TEST_JOBS=N       make test runs N programs at once (unasked, one more than there are cores; many of them wait)
#: OMP_NUM_THREADS=N (at run time) threads on the CPU

# All cores, unless -j says otherwise: those that this process may use, and a container's share of them.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
CORES := $(or $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null),1)
CPU_MAX ?= /sys/fs/cgroup/cpu.max
SHARE := $(shell awk '$$1 + 0 > 0 { print int(($$1 + $$2 - 1) / $$2) }' $(CPU_MAX) 2>/dev/null)
MAKEFLAGS += -j$(firstword $(shell printf '%s\n' $(CORES) $(SHARE) | sort -n))
endif
# "clean" and what is built after it, one after the other.
$(if $(filter clean,$(MAKECMDGOALS)),$(eval .NOTPARALLEL:))

BUILD ?= build
PYTHON ?= python3
NVCC := $(if $(filter undefined,$(origin NVCC)),$(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc)),$(NVCC))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
Q := $(if $(V),,@)
comma := ,

# True if the C compiler can build and link with the flags in $(1).
can = $(shell echo 'int main(void){return 0;}' | $(CC) $(1) -x c - -o /dev/null 2>/dev/null && echo $(1))
OPENMP := $(if $(NO_OPENMP),,$(call can,-fopenmp))
NATIVE := $(call can,-march=native)
# A later compiler warns of more: that must not stop a user's build. make lint refuses what today's compilers warn of.
WARNINGS = -Wall -Wextra -Wshadow -Werror=switch $(if $(WERROR),-Werror) -Wno-unused-parameter $(if $(OPENMP),,-Wno-unknown-pragmas)
# -fno-math-errno lets sqrtf and friends become instructions; nothing here relaxes NaN, inf or rounding.
CFLAGS_ALL = -std=c11 -D_GNU_SOURCE -I. $(if $(DEBUG),-g -O1,-O3) $(NATIVE) -fno-math-errno -ffp-contract=fast \
	$(OPENMP) $(WARNINGS) -MMD -MP $(CFLAGS)
LIBS = -lm -lpthread -ldl

# sm_80 code runs on every card from A100 to Ada, sm_90a on Hopper; later cards' drivers compile the PTX (of compute_80).
# Unasked, what the cards of this machine need, each kind once; all of it where there is none, or nvidia-smi does not say.
ifneq ($(NVCC),)
CARDS := $(if $(filter-out native,$(GPU_ARCH)),,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
	sed -n 's/^ *\([0-9]*\)\.\([0-9]\) *$$/\1\2/p' | sort -u))
$(if $(filter native,$(GPU_ARCH)),$(if $(CARDS),,$(error GPU_ARCH=native: nvidia-smi names no card; hint: GPU_ARCH=90a, or leave it out for all cards)))
$(foreach kind,$(filter-out all native ptx,$(subst $(comma), ,$(GPU_ARCH))),$(if $(shell echo '$(kind)' | grep -xE '[0-9]{2,3}[af]?'),,\
	$(error GPU_ARCH=$(kind): expected a compute capability, all or native; hint: GPU_ARCH=90a is an H100's or H200's, 80 an A100's)))
endif
kind_of_card = $(if $(filter 90,$(1)),90a,$(if $(filter 8%,$(1)),80,ptx))
override GPU_ARCH := $(strip $(or $(sort $(foreach card,$(CARDS),$(call kind_of_card,$(card)))),$(subst $(comma), ,$(GPU_ARCH)),all))
export GPU_ARCH
code_for = -gencode arch=compute_$(1)$(comma)code=sm_$(1)
code_for_ptx = -gencode arch=compute_80$(comma)code=compute_80
ARCHS := $(strip $(foreach kind,$(patsubst 90,90a,$(patsubst all,80 90a ptx,$(GPU_ARCH))),$(if $(filter ptx,$(kind)),$(code_for_ptx),$(call code_for,$(kind)))))
NVCCFLAGS = -std=c++17 -O3 -I. $(ARCHS) -Xcompiler -Wall,-Wextra,-Wno-unused-parameter $(if $(WERROR),-Xcompiler -Werror -Werror all-warnings) \
	--expt-relaxed-constexpr -MMD -MP $(if $(DEBUG),-g -lineinfo) $(if $(BOUNDED_WAIT),-DBOUNDED_WAIT) \
	$(if $(DELAYS),-DDELAYS)
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcublasLt -Xlinker -rpath -Xlinker $(CUDA_HOME)/lib64

CORE_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out llmc/cpu/no_cuda.c,$(wildcard llmc/*/*.c)))
CUDA_OBJ := $(patsubst %.cu,$(BUILD)/%.o,$(wildcard llmc/cuda/*.cu llmc/cuda/*/*.cu llmc/cuda/*/*/*.cu))
STUB_OBJ := $(BUILD)/llmc/cpu/no_cuda.o
OPS_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard dev/ops/*.c))
TEST_SOURCES := $(wildcard dev/test/*/test_*.c)
TESTS := $(patsubst %.c,$(BUILD)/%,$(notdir $(TEST_SOURCES)))

LINK_CPU = $(CC) $(CFLAGS_ALL)
LINK_CUDA = $(NVCC) $(ARCHS) $(if $(OPENMP),-Xcompiler -fopenmp)
# Tests link the CUDA backend where nvcc is, so that one set of programs checks all that a machine has.
ifneq ($(NVCC),)
TEST_PROGRAMS = train_gpt2 train_gpt2cu test_gpt2cu
TEST_OBJ = $(OPS_OBJ) $(CORE_OBJ) $(CUDA_OBJ)
LINK_TEST = $(LINK_CUDA)
LINK_TEST_LIBS = $(LIBS) $(CUDA_LIBS)
else
TEST_PROGRAMS = train_gpt2 test_gpt2
TEST_OBJ = $(OPS_OBJ) $(CORE_OBJ) $(STUB_OBJ)
LINK_TEST = $(LINK_CPU)
LINK_TEST_LIBS = $(LIBS)
endif

.PHONY: help test dev bench compare lint sanitize soak clean need-nvcc need-card need-torch
help:
	@sed -n 's/^#: *//p' Makefile

# ---- programs ----
need-nvcc:
	@test -n "$(NVCC)" || { echo 'error: nvcc not found; hint: install the CUDA Toolkit and put its bin on the PATH, or make train_gpt2' >&2; exit 2; }

train_gpt2 test_gpt2: %: $(BUILD)/%.o $(CORE_OBJ) $(STUB_OBJ)
	$(Q)$(LINK_CPU) $^ -o $@ $(LIBS)
train_gpt2cu test_gpt2cu: %cu: $(BUILD)/%.o $(CORE_OBJ) $(CUDA_OBJ) | need-nvcc
	$(Q)$(LINK_CUDA) $^ -o $@ $(LIBS) $(CUDA_LIBS)
train_gpt2 train_gpt2cu: | default-text

# ---- objects ----
$(BUILD)/%.o: %.c Makefile $(BUILD)/c_flags
	@mkdir -p $(@D)
	@echo "  cc   $<"
	$(Q)$(CC) $(CFLAGS_ALL) -c $< -o $@
# The two programs at the top level are plain C, whatever their suffix: only llmc/cuda holds kernels.
$(BUILD)/train_gpt2.o $(BUILD)/test_gpt2.o: $(BUILD)/%.o: %.cu Makefile $(BUILD)/c_flags
	@mkdir -p $(@D)
	@echo "  cc   $<"
	$(Q)$(CC) $(CFLAGS_ALL) -x c -c $< -o $@
$(CUDA_OBJ): $(BUILD)/%.o: %.cu Makefile $(BUILD)/nvcc_flags | need-nvcc
	@mkdir -p $(@D)
	@echo "  nvcc $<"
	$(Q)$(NVCC) $(NVCCFLAGS) -c $< -o $@

# The commit stands in --version, logs and checkpoints; the file changes only when the commit does. Sources that lie in another
# repository's folder, unpacked there, have none.
COMMIT := $(or $(shell git ls-files --error-unmatch Makefile >/dev/null 2>&1 && git describe --always --dirty=-modified --exclude='*' 2>/dev/null),unknown)
# Writes text $(2) to the file $(1), only where it is not there already.
remember = $(shell mkdir -p $(BUILD); printf '%s\n' '$(2)' | cmp -s - $(1) || printf '%s\n' '$(2)' >$(1))
$(call remember,$(BUILD)/commit,$(COMMIT))
$(BUILD)/llmc/base/version.o: $(BUILD)/commit
# Other compilers or flags than last time build everything again.
$(call remember,$(BUILD)/c_flags,$(CC) $(CFLAGS_ALL))
$(if $(NVCC),$(call remember,$(BUILD)/nvcc_flags,$(NVCC) $(NVCCFLAGS)))
$(BUILD)/llmc/base/version.o: CFLAGS += -DLLMC_COMMIT='"$(COMMIT)"'

# ---- checks ----
$(foreach source,$(TEST_SOURCES),$(eval $(BUILD)/$(notdir $(source:.c=)): $(BUILD)/$(source:.c=.o)))
$(call remember,$(BUILD)/test_kind,$(if $(NVCC),cuda,cpu))
$(TESTS): $(TEST_OBJ) $(BUILD)/test_kind
	$(Q)$(LINK_TEST) $(filter %.o,$^) -o $@ $(LINK_TEST_LIBS)
# With a card, the lab's checks are a part of the tests.
test: $(TESTS) $(TEST_PROGRAMS) $(BUILD)/lab_cpu $(BUILD)/soak $(if $(NVCC),$(if $(wildcard /dev/nvidia[0-9]*),dev/lab))
	@dev/test/run.sh $(TESTS) $(wildcard dev/test/*/test_*.sh) ./$(lastword $(TEST_PROGRAMS))
lint:
	@scripts/lint.sh
DELAYED := test_ops test_ops_attention test_ops_attention_projection test_token
.PHONY: delays
delays: need-card
	@$(MAKE) --no-print-directory $(DELAYED:%=$(BUILD)/%)
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/delays DELAYS=1 $(DELAYED:%=$(BUILD)/delays/%)
	@dev/test/delays.sh $(BUILD) $(BUILD)/delays $(DELAYED)
SANITIZED = $(MAKE) --no-print-directory BUILD=build/sanitize NVCC= DEBUG=1 CFLAGS='-fsanitize=address,undefined -fno-sanitize-recover=all'
sanitize:
	+@$(SANITIZED) sanitize-run
.PHONY: sanitize-run mutants
mutants:
	@JOBS='$(JOBS)' ONLY='$(ONLY)' KEEP='$(KEEP)' KIND='$(KIND)' QUICK='$(QUICK)' RECORD='$(RECORD)' $(PYTHON) -B dev/mutants/mutants.py
sanitize-run: $(TESTS)
	@dev/test/run.sh $(TESTS)

# The soak reads damaged files with the program's own readers, and runs the program for the rest.
SOAK_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard dev/soak/*.c)) $(CORE_OBJ) $(STUB_OBJ)
$(BUILD)/soak: $(SOAK_OBJ)
	$(Q)$(LINK_CPU) $^ -o $@ $(LIBS)
$(BUILD)/train_gpt2: $(BUILD)/train_gpt2.o $(CORE_OBJ) $(STUB_OBJ)
	$(Q)$(LINK_CPU) $^ -o $@ $(LIBS)
soak: train_gpt2
	+@$(SANITIZED) build/sanitize/soak build/sanitize/train_gpt2
	@SANITIZED_PROGRAM=build/sanitize/train_gpt2 build/sanitize/soak

# ---- dev ----
# The lab's tables name the fields they set (C++20) and leave out the others.
$(BUILD)/dev/%.o: dev/%.cu Makefile $(BUILD)/nvcc_flags | need-nvcc
	@mkdir -p $(@D)
	@echo "  nvcc $<"
	$(Q)$(NVCC) $(subst c++17,c++20,$(NVCCFLAGS)) -Xcompiler -Wno-missing-field-initializers -c $< -o $@
# Every file of dev/driver/lab* and of the ladders; without nvcc the lab has the CPU's rows.
LADDERS := $(addprefix dev/,attention matmul layernorm softmax_loss gelu adamw embedding grad_norm newton_schulz)
LAB_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard dev/driver/lab*.c $(LADDERS:=/*.c))) $(OPS_OBJ) $(CORE_OBJ)
LAB_CUDA_OBJ := $(patsubst %.cu,$(BUILD)/%.o,$(wildcard dev/driver/lab*.cu $(LADDERS:=/*.cu))) $(CUDA_OBJ)
$(call remember,$(BUILD)/lab_kind,$(if $(NVCC),cuda,cpu))
dev/lab: $(LAB_OBJ) $(if $(NVCC),$(LAB_CUDA_OBJ),$(STUB_OBJ) $(BUILD)/dev/driver/no_cuda_lab.o) $(BUILD)/lab_kind
	$(Q)$(if $(NVCC),$(LINK_CUDA),$(LINK_CPU)) $(filter %.o,$^) -o $@ $(LIBS) $(if $(NVCC),$(CUDA_LIBS))
# The same without CUDA, which builds in seconds, for the lab's test.
$(BUILD)/lab_cpu: $(LAB_OBJ) $(STUB_OBJ) $(BUILD)/dev/driver/no_cuda_lab.o
	$(Q)$(LINK_CPU) $^ -o $@ $(LIBS)
$(BUILD)/bench_cpu: $(BUILD)/dev/driver/bench_cpu.o $(OPS_OBJ) $(CORE_OBJ) $(STUB_OBJ)
	$(Q)$(LINK_CPU) $^ -o $@ $(LIBS)
# The attention kernels as a shared object with a C interface, for scripts/compare_attention.py. Its objects are its own, because they are
# position-independent; of context.cu the linker keeps what the kernels use, so no cuBLASLt is loaded.
PIC_OBJ := $(patsubst %.cu,$(BUILD)/pic/%.o,dev/driver/attention_library.cu dev/attention/hopper.cu \
	$(wildcard dev/attention/hopper_noncausal_*.cu) llmc/cuda/device/context.cu $(wildcard llmc/cuda/attention/*.cu llmc/cuda/attention/*/*.cu))
$(PIC_OBJ): $(BUILD)/pic/%.o: %.cu Makefile $(BUILD)/nvcc_flags | need-nvcc
	@mkdir -p $(@D)
	@echo "  nvcc $<"
	$(Q)$(NVCC) $(NVCCFLAGS) -Xcompiler -fPIC,-fvisibility=hidden,-ffunction-sections -c $< -o $@
$(BUILD)/libattention.so: $(PIC_OBJ)
	$(Q)$(NVCC) $(ARCHS) -shared -Xlinker --gc-sections,-z,defs $^ -o $@
dev: dev/lab $(BUILD)/bench_cpu
# A shell command: whether this machine has a GPU.
HAS_CARD := nvidia-smi -L >/dev/null 2>&1
.PHONY: tables
tables: dev/lab
	@if [ -n '$(NVCC)' ] && $(HAS_CARD); then $(MAKE) --no-print-directory train_gpt2cu; fi
	@$(PYTHON) dev/tables.py
need-card:
	@$(HAS_CARD) || { echo 'error: no NVIDIA GPU on this machine; hint: make dev, then dev/lab and build/bench_cpu time the CPU' >&2; exit 2; }
need-torch:
	@$(PYTHON) -c 'import torch' 2>/dev/null || { echo 'error: $(PYTHON) has no torch; hint: pip install torch, or PYTHON=another' >&2; exit 2; }
bench: need-card
	@$(MAKE) --no-print-directory dev/lab train_gpt2cu
	@dev/lab --time --causal 1 --variant cuda,sm90,sm80
	@scripts/bench_train.sh
compare: need-card need-torch
	@$(MAKE) --no-print-directory $(BUILD)/libattention.so train_gpt2cu
	@$(PYTHON) scripts/compare_attention.py
	@$(PYTHON) scripts/compare_train.py

# The flag table of its page, as the program has it.
flags: train_gpt2
	@./train_gpt2 --help-markdown >$(BUILD)/flags.md
	@sed -i -e '/^<!-- flags -->/,/^<!-- .flags -->/{//!d}' -e '/^<!-- flags -->/r $(BUILD)/flags.md' llmc/run/FLAGS.md
clean:
	rm -rf build train_gpt2 train_gpt2cu test_gpt2 test_gpt2cu dev/lab

include data/data.mk
.SECONDARY:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
