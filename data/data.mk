# Data sets: `make data` lists them. Included by the Makefile; data/README.md says what each script writes and where.
DATA_PYTHON = data/.venv/bin/python

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
data/.venv/ready: data/requirements.txt
	$(PYTHON) -m venv data/.venv
	$(DATA_PYTHON) -m pip install --quiet --disable-pip-version-check -r data/requirements.txt
	@touch $@

data/tinyshakespeare data/tinystories data/hellaswag: data/%: data/.venv/ready
	$(DATA_PYTHON) data/$*.py $(ARGS)
data/fineweb10B data/fineweb100B: data/fineweb%: data/.venv/ready
	$(DATA_PYTHON) data/fineweb.py --version $* $(ARGS)
data/edu_fineweb10B data/edu_fineweb100B: data/edu_fineweb%: data/.venv/ready
	$(DATA_PYTHON) data/fineweb.py --version edu$* $(ARGS)
