# `make ppo` trains, `make test` tests, `make help` lists the rest. Each works from a clean clone and makes the environment it needs.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help ppo reinforce_loo reinforce_loo_agent sft reward dpo compare pipeline reward_hacking preflight tensorboard smoke test test-current test-trl112 check format clean

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=
VENV := .venv
VENV_TRL112 := .venv-trl112
RUNS := runs
RECIPES := $(sort $(notdir $(basename $(wildcard recipes/[a-z]*.py))))
# The matrices of the embedded policy are too small to share among threads, and on a busy machine threads that wait for each
# other make it many times slower: one thread. THREADS=8 for a larger model on a CPU.
THREADS ?= 1
# TRL alone differs between the two lanes: what imports none of it (tests/test_layers.py) is tested on one, and so is what is
# of Accelerate, PEFT and Transformers: engines, several processes that decide or fail, policies side by side, twins of one.
WITHOUT_TRL := functional monitor checkpoints tiny reporting data sweep
REWARDS_WITHOUT_TRL := ending failures format json_actions json_format json_schema keywords language length numeric reliability \
	reliability_numbers remote repetition safety samples sentiment text
ONE_LANE := $(WITHOUT_TRL) $(patsubst %,rewards/test_%.py,$(REWARDS_WITHOUT_TRL)) test_data.py test_errors.py \
	test_degenerate_pairs.py test_preferences.py test_review_agent.py test_layers.py test_cli.py test_cli_checkpoint.py test_cli_sweep.py \
	test_cli_pipeline.py recipes/test_scale.py recipes/test_compare.py trainers/test_failures.py configuration/test_engines.py \
	generation/test_twin.py rewards/test_reward_model.py rewards/test_hash_seeds.py callbacks/test_two_processes.py
# Tests run in that many processes, those of a file in one: what a file prepares is prepared once.
CORES := $(shell n=$$(env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); [ "$$n" -gt 8 ] && echo 8 || echo "$$n")
DEVICE := $(shell nvidia-smi -L >/dev/null 2>&1 && echo single_gpu || echo cpu)
# PPO counts its length in episodes, in both TRL lanes; 64 a step.
SMOKE_ppo := --total_episodes 192
SMOKE_compare := --num_prompts 8
SMOKE_reinforce_loo_agent := --max_steps 3 --model_name_or_path trl_ext/tiny
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

# Accelerate would count physical cores, and warn; in a container or on two hyper-threads that is often one.
LAUNCH = $(VENV)/bin/accelerate launch --quiet --config_file accelerate_configs/$(DEVICE).yaml --num_cpu_threads_per_process $(THREADS)
ifeq ($(DEVICE),single_gpu)
ifneq ($(CUDA_VISIBLE_DEVICES),)
LAUNCH += --gpu_ids $(CUDA_VISIBLE_DEVICES)
endif
endif

# $(call torch,folder,sed expression over the pins) and $(call install,folder,extras). Torch comes first and alone: PyPI's Linux
# wheel brings gigabytes of CUDA, so a machine without a GPU takes PyTorch's CPU build where that index can be reached. The pip
# that comes with Python 3.11 takes half as long again as a new one.
define torch
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo "trl_ext needs Python 3.11 or newer, '$(PYTHON)' is not: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
@echo "Installing into $(1) (some minutes, once)"
@test -x $(1)/bin/pip || $(PYTHON) -m venv --clear $(1)
@sed '$(2)' constraints.txt > $(1)/constraints.txt
@$(1)/bin/python -m pip install --quiet --constraint $(1)/constraints.txt --upgrade pip
@index=; if [ $(DEVICE) = cpu ] && [ "$$(uname)" = Linux ] && $(1)/bin/python -c \
	'import urllib.request as r; r.urlopen("$(TORCH_CPU_INDEX)/torch/", timeout=5)' 2>/dev/null; \
	then index="--extra-index-url $(TORCH_CPU_INDEX)"; fi; \
	$(1)/bin/python -m pip install --quiet --constraint $(1)/constraints.txt $$index torch
endef
define install
@$(1)/bin/python -m pip install --quiet --constraint $(1)/constraints.txt --editable '.[$(2)]'
endef

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9_-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo 'ARGS="--seed 1 --kl_coef 0.1" goes to the recipe, PYTEST_ARGS="tests/monitor -x" to pytest; PYTHON=python3.12 names the'
	@echo 'interpreter, DEVICE=cpu|single_gpu the Accelerate configuration (found here: $(DEVICE)), THREADS=8 the threads of a'
	@echo 'recipe on a CPU (one, which suits the embedded policy), CORES the processes of the tests (found here: $(CORES)).'

ppo: ## train the embedded policy with PPO, watched by the monitor
reinforce_loo: ## the same with REINFORCE and a leave-one-out baseline
sft: ## train a policy on the review sentences from scratch
reward: ## train a reward model on what human judges thought of the review sentences
dpo: ## train a policy on those pairs without a reward model
compare: ## policies side by side: make compare ARGS="--policies trl_ext/tiny runs/ppo runs/dpo"
ppo reinforce_loo sft reward dpo compare: $(VENV)/.installed-recipes
	$(LAUNCH) recipes/$@.py --config recipes/$@.yaml $(ARGS)
preflight: $(VENV)/.installed-recipes ## check a recipe before it runs: make preflight ARGS="--config recipes/ppo.yaml"
	$(VENV)/bin/trl-ext preflight $(or $(ARGS),--config recipes/ppo.yaml)
pipeline: $(VENV)/.installed-recipes ## SFT, reward model, DPO and PPO, each from what the one before made; eight minutes on a quiet core
	OMP_NUM_THREADS=$(THREADS) $(VENV)/bin/trl-ext pipeline recipes/pipeline.yaml \
		--accelerate_config accelerate_configs/$(DEVICE).yaml $(ARGS)
reinforce_loo_agent: $(VENV)/.installed-recipes $(RUNS)/reinforce_loo_agent_sft/config.json ## an agent with tools, taught the form first
	$(LAUNCH) recipes/$@.py --config recipes/$@.yaml $(ARGS)
$(RUNS)/reinforce_loo_agent_sft/config.json: | $(VENV)/.installed-recipes
	$(LAUNCH) recipes/sft.py --config recipes/reinforce_loo_agent_sft.yaml --output_dir $(RUNS)/reinforce_loo_agent_sft
reward_hacking: $(VENV)/.installed-recipes $(RUNS)/reward/config.json ## a reward that is hacked, on purpose, and a callback that says so
	$(LAUNCH) recipes/ppo.py --config recipes/$@.yaml $(ARGS)
# The held-back reward of it, where no `make reward` has made it yet.
$(RUNS)/reward/config.json: | $(VENV)/.installed-recipes
	$(LAUNCH) recipes/reward.py --config recipes/reward.yaml --output_dir $(RUNS)/reward

tensorboard: $(VENV)/.installed-recipes ## look at the curves of every run under runs/
	$(VENV)/bin/tensorboard --logdir $(RUNS)

smoke: $(addprefix smoke-,$(RECIPES)) ## every recipe, three steps each
smoke-%: $(VENV)/.installed-recipes
	HF_HUB_OFFLINE=1 $(LAUNCH) recipes/$*.py --config recipes/$*.yaml $(or $(SMOKE_$*),--max_steps 3) \
		--output_dir $(RUNS)/smoke/$* $(ARGS)

test: ## the tests, on current TRL and on TRL 1.12
	@$(MAKE) --no-print-directory --keep-going test-current test-trl112
test-current: $(VENV)/.installed-all ## the tests on current TRL
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(CORES) --dist loadfile $(PYTEST_ARGS)
test-trl112: $(VENV_TRL112)/.installed-all ## the tests on TRL 1.12, the last with its own PPO
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV_TRL112)/bin/python -m pytest -n $(CORES) --dist loadfile \
		$(or $(PYTEST_ARGS),$(addprefix --ignore=tests/,$(ONE_LANE)))

check: $(VENV)/.installed-all ## lint, format and types
	@failed=0; for command in "ruff check ." "ruff format --check ." mypy; do \
		echo "$$command"; $(VENV)/bin/$$command || failed=1; done; exit $$failed

format: $(VENV)/.installed-all ## put the code into shape
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean: ## remove environments and caches; runs/ stays
	rm -rf .venv .venv-trl112 .venv-ci build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find trl_ext recipes tests -name __pycache__ -prune -exec rm -rf {} +

# A stamp is newer than what says what to install, so a second run installs nothing.
$(VENV)/.torch: constraints.txt
	$(call torch,$(VENV))
	@touch $@
$(VENV)/.installed-recipes: $(VENV)/.torch pyproject.toml
	$(call install,$(VENV),recipes)
	@touch $@
$(VENV)/.installed-all: $(VENV)/.torch pyproject.toml
	$(call install,$(VENV),all)
	@touch $@ $(VENV)/.installed-recipes
$(VENV_TRL112)/.torch: constraints.txt
	$(call torch,$(VENV_TRL112),s/^trl==.*/trl==1.12.0/)
	@touch $@
$(VENV_TRL112)/.installed-all: $(VENV_TRL112)/.torch pyproject.toml
	$(call install,$(VENV_TRL112),all)
	@touch $@
