#!/bin/sh
# --completion: every flag, and what bash, zsh and fish make of it; a shell that is not installed is skipped.
# Usage: dev/test/run/test_completion.sh [PROGRAM], from the repository root. Ends with 'completion: N passed, N failed, N skipped'.
set -u
program=${1:-./train_gpt2}
test=completion
. dev/test/user.sh

flags=$("$program" --help | sed -n 's/^  \(-.,\|   \) --\([a-z0-9-]*\).*/\2/p')
check "--help lists flags" [ "$(echo "$flags" | wc -l)" -gt 50 ]
for shell in bash zsh fish; do
    "$program" --completion $shell >"$work/$shell" 2>"$work/err"
    check "$shell: exit code" [ $? -eq 0 ]
    check "$shell: nothing but the script" [ ! -s "$work/err" ]
    missing=
    for flag in $flags; do grep -qE -- "(--|-l )$flag\b" "$work/$shell" || missing="$missing $flag"; done
    check "$shell: every flag${missing:+, but for$missing}" [ -z "$missing" ]
    check "$shell: no hidden flag" eval '! grep -q help-markdown "$work/$shell"'
done
"$program" --completion tcsh >"$work/out" 2>"$work/err"
check "another shell: exit code 2" [ $? -eq 2 ]
check "another shell: the line says which there are" grep -q "^error: --completion: 'tcsh' is not one of bash, zsh, fish$" "$work/err"

mkdir "$work/here" && cd "$work/here" && mkdir folder 'two words' && : >'a b.txt' && : >model.bin
# of EXPECTED WORDS...: what the shell offers for the last word.
if command -v bash >/dev/null 2>&1; then
    of() {
        expected=$1
        shift
        found=$(bash -c 'compopt() { :; }; . "$1"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _train_gpt2; printf "%s\n" "${COMPREPLY[@]}"' bash "$work/bash" "$@" | LC_ALL=C sort | paste -sd, -)
        check "bash, $*: expected $expected, found $found" [ "$found" = "$expected" ]
    }
    of '--device' train_gpt2 --devi
    of 'auto,cpu,cuda' train_gpt2 --device ''
    of 'bash,fish,zsh' train_gpt2 --completion ''
    of 'cpu,cuda' train_gpt2 --resume --device c
    of 'cpu' train_gpt2 --device = cp
    of 'block,gelu,linear,none' train_gpt2 -r = # --recompute= as bash takes it apart
    of 'gpt2,gpt2-cpu' train_gpt2 --recipe gpt2
    of 'a b.txt,bytes,folder,model.bin,two words' train_gpt2 --tokenizer ''
    of 'model.bin' train_gpt2 --model model
    of 'd6,d60' train_gpt2 -e d6
    of 'gpt3:c1024,gpt3:c12288,gpt3:c1536' train_gpt2 --model gpt3:c1
    of 'c2048,c2560' train_gpt2 --model gpt3 : c2
    of 'c384' train_gpt2 --model = gpt3 : c38
    of 'folder,two words' train_gpt2 --out ''
    of 'folder' train_gpt2 --out f
    of '' train_gpt2 --steps ''
    of '--export,--export-type' train_gpt2 --resume --exp
else
    skipped=$((skipped + 1))
fi
if command -v fish >/dev/null 2>&1; then
    of() {
        found=$(HOME=$work fish --no-config -c "source $work/fish; complete -C '$2'" 2>&1 | cut -f 1 | LC_ALL=C sort | paste -sd, -)
        check "fish, $2: expected $1, found $found" [ "$found" = "$1" ]
    }
    of 'auto,cpu,cuda' 'train_gpt2 --device '
    of '--export,--export-type' 'train_gpt2 --exp'
    of 'd6,d60' 'train_gpt2 -e d6'
    of 'folder/' 'train_gpt2cu --out f'
    of '' 'train_gpt2 --steps '
else
    skipped=$((skipped + 1))
fi
if command -v zsh >/dev/null 2>&1; then
    check "zsh reads it" zsh -fc "autoload -Uz compinit && compinit -D && source $work/zsh && [[ \$_comps[train_gpt2cu] == _train_gpt2 ]]"
else
    skipped=$((skipped + 1))
fi
cd "$OLDPWD" || exit 1
finish
