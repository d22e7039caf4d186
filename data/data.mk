# Data sets: `make data` lists them. Included by the Makefile; data/README.md says what each script writes and where.
#
# The scripts run by PYTHON where it has their packages, so that no network is needed; else by data/.venv's, which comes first where
# it is there and nobody names a PYTHON.
HAS_PACKAGES := $(if $(filter data/%,$(MAKECMDGOALS)),$(if $(and $(filter file,$(origin PYTHON)),$(wildcard data/.venv/ready)),,$(shell $(PYTHON) data/has_packages.py 2>/dev/null && echo yes)))
DATA_PYTHON = $(if $(HAS_PACKAGES),$(PYTHON),data/.venv/bin/python)
DATA_PACKAGES = $(if $(HAS_PACKAGES),,data/.venv/ready)

.PHONY: data default-text data/tinyshakespeare data/tinystories data/hellaswag \
	data/fineweb10B data/fineweb100B data/edu_fineweb10B data/edu_fineweb100B
data:
	@echo 'make data/tinyshakespeare     0.3 M tokens, seconds'
	@echo 'make data/tinystories         0.9 G tokens, minutes on many cores'
	@echo 'make data/hellaswag           10,042 items of multiple choice, for --hellaswag'
	@echo 'make data/fineweb10B          10 G tokens, 20 GB on disk; also fineweb100B, edu_fineweb10B, edu_fineweb100B'
	@echo 'make data/NAME ARGS="..."     passes options to the script (ARGS=--help lists them)'
	@echo 'make data/.venv               only the Python packages; then, from any text files of yours:'
	@echo '    data/.venv/bin/python data/text.py --out data/mine FILE...'
	@echo '    data/.venv/bin/python data/train_tokenizer.py --out data/my_tokenizer FILE...'

# The training text of a run without --train: TEXT=path, or TinyShakespeare, or the project's own sources.
default-text:
	@sh scripts/default_text.sh

.PHONY: data/.venv
data/.venv: data/.venv/ready
# One that was begun here, and not finished, goes again.
data/.venv/ready: data/requirements.txt
	@[ -e data/.venv ] || trap '[ -e $@ ] || rm -rf data/.venv' EXIT; trap 'exit 1' INT TERM; \
	echo 'pip installs the packages of data/requirements.txt into data/.venv'; \
	$(PYTHON) -m venv data/.venv && data/.venv/bin/python -m pip install --quiet --disable-pip-version-check -r $< && touch $@ || \
	{ echo 'error: the packages of data/requirements.txt are not to be had; hint: without a network, PYTHON=a python3 that has them' >&2; exit 1; }

data/tinyshakespeare data/tinystories data/hellaswag: data/%: $(DATA_PACKAGES)
	$(DATA_PYTHON) data/$*.py $(ARGS)
data/fineweb10B data/fineweb100B: data/fineweb%: $(DATA_PACKAGES)
	$(DATA_PYTHON) data/fineweb.py --version $* $(ARGS)
data/edu_fineweb10B data/edu_fineweb100B: data/edu_fineweb%: $(DATA_PACKAGES)
	$(DATA_PYTHON) data/fineweb.py --version edu$* $(ARGS)
