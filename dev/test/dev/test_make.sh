#!/bin/sh
# What make builds and how, on stand-ins for the compilers and the card: all cores unasked, the kinds of cards that are there;
# the Python that prepares data; and the recipe for 124M, which looks for what it needs before it builds or downloads. Nothing
# here compiles.
# Usage: dev/test/dev/test_make.sh, from the repository root. Ends with 'make: N passed, N failed, N skipped'.
set -u
test=make
. dev/test/user.sh
unset MAKEFLAGS MFLAGS MAKELEVEL GPU_ARCH NVCC TEXT
bin=$work/bin
mkdir "$bin" "$work/running"
# tool NAME: a command of that name, whose script is on stdin.
tool() { { echo '#!/bin/sh'; cat; } >"$bin/$1" && chmod +x "$bin/$1"; }
# cards CAPABILITY...: what nvidia-smi says; without one, that it has failed.
cards() {
    if [ $# -gt 0 ]; then printf '%s\n' "$@" >"$work/cards"; else echo "NVIDIA-SMI has failed because it couldn't communicate with the driver" >"$work/cards"; fi
    tool nvidia-smi <<END
cat "$work/cards"
[ $# -gt 0 ]
END
}
tool nvcc </dev/null
tool nproc <<'END'
echo 3
END

# ---- the kinds of cards ----
# built_for EXPECTED [ARG...]: code that the compiler is asked for.
built_for() {
    expected=$1
    shift
    (PATH=$bin:$PATH make -n BUILD="$work/build" NVCC="$bin/nvcc" "$@" "$work/build/llmc/cuda/device/context.o") >"$work/out" 2>"$work/err"
    found=$(grep -- '-gencode' "$work/out" | grep -o 'code=[a-z0-9_]*' | sed 's/code=//' | tr '\n' ' ')
    check "$(tr '\n' ' ' <"$work/cards")$*: built for '$found', expected '$expected'" [ "$found" = "$expected" ]
}
cards
built_for 'sm_80 sm_90a compute_80 '
built_for 'sm_90a ' GPU_ARCH=90a
cards 9.0
built_for 'sm_90a '
built_for 'sm_90a ' GPU_ARCH=native
built_for 'sm_80 sm_90a compute_80 ' GPU_ARCH=all
built_for 'sm_86 ' GPU_ARCH=86
built_for 'sm_80 sm_90a ' GPU_ARCH='80 90'
built_for 'sm_80 sm_90a ' GPU_ARCH=80,90a
for kind in h100 sm_90 9.0 90b '80 hopper'; do
    built_for '' GPU_ARCH="$kind"
    check "GPU_ARCH=$kind: is refused" grep -q "GPU_ARCH=${kind#80 }: expected a compute capability, all or native; hint: " "$work/err"
done
check 'GPU_ARCH=sm_90: is nothing to a build for the CPU' sh -c 'make -n NVCC= GPU_ARCH=sm_90 BUILD="$0" "$0/llmc/base/files.o" >/dev/null 2>&1' "$work/build"
cards 8.0
built_for 'sm_80 '
cards 8.9
built_for 'sm_80 '
cards 10.0
built_for 'compute_80 '
cards 12.0
built_for 'compute_80 '
cards 9.0 8.6 9.0
built_for 'sm_80 sm_90a '
cards 12.0 9.0
built_for 'sm_90a compute_80 '

# ---- warnings: those of a later compiler stop no build ----
for object in llmc/base/files llmc/cuda/device/context; do
    for strict in '' 1; do
        (PATH=$bin:$PATH make -n BUILD="$work/build" NVCC="$bin/nvcc" WERROR=$strict "$work/build/$object.o") >"$work/out" 2>"$work/err"
        check "WERROR='$strict': $object has its warnings" grep -q -e -Wextra "$work/out"
        check "WERROR='$strict': $object , errors of them" [ "$(grep -c -E -e '-Werror([ ,]|$)' "$work/out")" -eq "${strict:-0}" ]
    done
done

# ---- the commit ----
# commit_is EXPECTED WHAT: of the sources unpacked in $work/other/copy.
commit_is() {
    make -s -C "$work/other/copy" BUILD=build NVCC= help >/dev/null 2>"$work/err"
    check "$2: commit $(cat "$work/other/copy/build/commit")" [ "$(cat "$work/other/copy/build/commit")" = "$1" ]
}
if command -v git >/dev/null 2>&1; then
    other() { git -C "$work/other" -c user.name=a -c user.email=a@b "$@"; }
    mkdir -p "$work/other/copy/data" && cp Makefile "$work/other/copy" && cp data/data.mk "$work/other/copy/data"
    { other init && other commit --allow-empty -m other; } >/dev/null 2>&1
    commit_is unknown "in a folder of another repository"
    echo build >"$work/other/.gitignore"
    { other add -A && other commit -m copy; } >/dev/null 2>&1
    commit_is "$(other describe --always)" "in a repository that holds them"
else
    skipped=$((skipped + 1))
fi

# ---- all cores ----
# A compiler that notes how many of it run at once. It waits until there are as many as expected, and a little for one more.
tool cc <<END
case "\$*" in *' -c '*) ;; *) exit 0 ;; esac
: >"$work/running/\$\$"
n=0
until [ -e "$work/all_there" ]; do
    [ "\$(ls "$work/running" | wc -l)" -lt "\$AT_ONCE" ] && [ \$n -lt 300 ] || : >"$work/all_there"
    sleep 0.1
    n=\$((n + 1))
done
ls "$work/running" | wc -l >>"$work/at_once"
sleep 0.2
rm "$work/running/\$\$"
while [ "\$1" != -o ]; do shift; done
: >"\$2"
END
# at_once EXPECTED [ARG...]: how many compilers run at most.
at_once() {
    expected=$1
    shift
    rm -rf "$work/build" "$work/at_once" "$work/all_there"
    AT_ONCE=$expected PATH=$bin:$PATH make BUILD="$work/build" NVCC= CC="$bin/cc" "$@" $objects >"$work/out" 2>"$work/err"
    check "make $*: exit code" [ $? -eq 0 ]
    found=$(sort -n "$work/at_once" | tail -n 1)
    check "make $*: $found at once, expected $expected" [ "$((found))" -eq "$expected" ]
    check "make $*: no warning" [ ! -s "$work/err" ]
}
objects=
for name in base/error base/json base/files run/schedule base/random data/shard; do objects="$objects $work/build/llmc/$name.o"; done
echo 'max 100000' >"$work/cpu.max"
at_once 3 CPU_MAX="$work/cpu.max"
echo '150000 100000' >"$work/cpu.max"
at_once 2 CPU_MAX="$work/cpu.max"
at_once 1 -j1
at_once 2 -j2

# ---- the Python of the data scripts ----
# python: a Python whose packages are those of $work/site alone. A venv of it is itself; its pip says what it is told.
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    tool python <<END
case "\$1 \$2" in
'-m venv') mkdir -p "\$3/bin" && cp "\$0" "\$3/bin/python" ;;
'-m pip') echo pip >>"$work/calls"; exit \$PIP ;;
*.py' '*) case \$1 in data/tiny*) echo "\$0 \$*" >>"$work/calls" ;; esac; PYTHONPATH=$work/site exec python3 -S "\$@" ;;
esac
END
    mkdir -p "$work/prepared/data" && cp Makefile "$work/prepared" && cp data/data.mk data/requirements.txt data/has_packages.py "$work/prepared/data"
    : >"$work/prepared/data/tinyshakespeare.py"
    # package NAME VERSION: as if pip had installed it.
    package() { rm -rf "$work/site/$1"-* && mkdir -p "$work/site/$1-$2.dist-info" && printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$1" "$2" >"$work/site/$1-$2.dist-info/METADATA"; }
    # prepares PIP EXPECTED WHAT: make data/tinyshakespeare where pip ends with PIP. EXPECTED: what it called.
    python="PYTHON=$bin/python"
    prepares() {
        rm -f "$work/calls"
        PIP=$1 env -u PYTHON make -s -C "$work/prepared" BUILD=build NVCC= $python data/tinyshakespeare >"$work/out" 2>"$work/err"
        status=$?
        check "$3: exit code $status" [ "$status" -eq "${4:-$(($1 ? 2 : 0))}" ]
        check "$3: called $(cat "$work/calls" 2>/dev/null)" [ "$(cat "$work/calls" 2>/dev/null)" = "$2" ]
    }
    here="$bin/python data/tinyshakespeare.py" own="data/.venv/bin/python data/tinyshakespeare.py"
    for name in tiktoken pyarrow tokenizers huggingface_hub; do package $name 0.20.1; done
    package pyarrow 10.0
    prepares 0 "$here" "a Python that has the packages"
    check "a Python that has the packages: no venv" [ ! -e "$work/prepared/data/.venv" ]
    package tokenizers 0.9.4
    prepares 1 pip "an old package, no network"
    check "an old package, no network: says what helps" grep -q '^error: the packages of data/requirements.txt .*; hint: without a network, PYTHON=a python3 that has them$' "$work/err"
    check "an old package, no network: no venv is left" [ ! -e "$work/prepared/data/.venv" ]
    prepares 0 "pip
$own" "an old package"
    prepares 0 "$own" "a venv that is there"
    package tokenizers 0.15
    python= prepares 0 "$own" "a venv beside a Python that nobody names"
    prepares 0 "$here" "a Python that has the packages, beside a venv"
    touch -t 200001010000 "$work/prepared/data/.venv/ready"
    prepares 1 "$here" "the same beside a venv of other requirements, no network" 0
    package pyarrow 40.0
    touch -t 200001010000 "$work/prepared/data/.venv/ready"
    prepares 1 pip "other requirements, no network"
    check "other requirements, no network: the venv stays" [ -e "$work/prepared/data/.venv/ready" ]
    rm -r "$work/prepared/data/.venv"
    prepares 1 pip "a package that is too new, no network"
    rm -r "$work/site/"tiktoken-*
    package pyarrow 39.1
    prepares 1 pip "a package that is missing, no network"
else
    skipped=$((skipped + 1))
fi

# ---- the recipe for 124M ----
mkdir -p "$work/tree/scripts" "$work/tree/data" "$work/few" && cp scripts/run_gpt2_124M.sh "$work/tree/scripts" && : >"$work/tree/train_gpt2.cu"
for name in sh ls test cat mkdir rm; do ln -s "$(command -v $name)" "$work/few/$name"; done
printf '#!/bin/sh\necho "$*" >>"%s/made"\n' "$work" >"$work/few/make" && chmod +x "$work/few/make"
# recipe_refuses PATTERN: on a PATH with these few commands; nothing is made.
recipe_refuses() {
    (cd "$work/tree" && PATH=$work/few NVCC=none exec sh scripts/run_gpt2_124M.sh) >"$work/out" 2>"$work/err" </dev/null
    status=$?
    refused "run_gpt2_124M.sh" "$1"
    check "run_gpt2_124M.sh, $1: nothing is built or downloaded" [ ! -e "$work/made" ]
}
recipe_refuses 'error: no NVIDIA GPU on this machine; hint: '
cards 9.0
cp "$bin/nvidia-smi" "$work/few"
if [ -x /usr/local/cuda/bin/nvcc ]; then skipped=$((skipped + 1)); else recipe_refuses 'error: nvcc not found; hint: '; fi
printf '#!/bin/sh\necho "trained $*" >>"%s/made"\n' "$work" >"$work/tree/train_gpt2cu" && chmod +x "$work/tree/train_gpt2cu"
recipe_refuses 'error: the data are missing, and python3'
mkdir "$work/tree/data/fineweb10B" && : >"$work/tree/data/fineweb10B/fineweb_train_000001.bin" && : >"$work/tree/data/fineweb10B/fineweb_val_000000.bin"
(cd "$work/tree" && PATH=$work/few exec sh scripts/run_gpt2_124M.sh --seed 9) >"$work/out" 2>"$work/err"
check "run_gpt2_124M.sh with all there trains" grep -q '^trained --recipe llm.c .*--resume --seed 9$' "$work/made"
check "run_gpt2_124M.sh with all there makes nothing" [ "$(wc -l <"$work/made")" -eq 1 ]
rm -r "$work/made" "$work/tree/data/fineweb10B" "$work/tree/train_gpt2cu"
for name in nvcc python3; do cp "$bin/nvcc" "$work/few/$name"; done
(cd "$work/tree" && PATH=$work/few exec sh scripts/run_gpt2_124M.sh) >"$work/out" 2>"$work/err"
check "run_gpt2_124M.sh builds, then downloads" [ "$(cat "$work/made")" = "train_gpt2cu
data/fineweb10B" ]
finish
