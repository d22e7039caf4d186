#!/bin/sh
# The rules that a machine can check, each with the file it found: format, warnings of two compilers, length of functions, PTX in
# one folder, wgmma serialisation and spills of the shipped kernels; links of the pages, what results say of themselves. Prints
# 'lint: ok' or exits 1.
# Usage: scripts/lint.sh, from the repository root. Tools that are missing are named and skipped.
set -u
status=0
complain() { echo "lint: $*" >&2; status=1; }
have() { # `make NVCC= lint` goes without nvcc, whose checks take minutes
    if [ "$1" != nvcc ] || [ -n "${NVCC-nvcc}" ]; then command -v "$1" >/dev/null 2>&1 && return; fi
    echo "lint: without $1: its checks are skipped" >&2
    return 1
}

git rev-parse --git-dir >/dev/null 2>&1 || { echo 'lint: not a git repository: the files to check are not known' >&2; exit 1; }
c_files=$(git ls-files -co --exclude-standard '*.c' '*.h' | sort)
cuda_files=$(git ls-files -co --exclude-standard '*.cu' '*.cuh' | sort)
top_files='train_gpt2.cu test_gpt2.cu'
flags='-std=c11 -D_GNU_SOURCE -I. -Wall -Wextra -Wshadow -Wno-unused-parameter -Werror -fsyntax-only'

if have clang-format; then
    clang-format --dry-run -Werror $c_files $cuda_files || complain "not formatted as .clang-format says (clang-format -i FILE)"
fi
for compiler in gcc clang; do
    have $compiler || continue
    for file in $c_files $top_files; do
        case $file in
        *.h) continue ;;
        llmc/* | train_gpt2.cu) strict=-Wpedantic ;; # what another compiler may refuse
        *) strict= ;;
        esac
        $compiler $flags $strict -fopenmp -x c "$file" || complain "$compiler warns about $file"
        $compiler $flags $strict -Wno-unknown-pragmas -x c "$file" || complain "$compiler without OpenMP warns about $file"
    done
done
# A function's body: from the first line that ends in '{', once a line in column 0 has begun its head, to the next '}' in column 0.
# Host code has a budget. A kernel's main loop may be long: those are listed, not refused. A file has one thing, of any length.
long_functions() {
    awk 'FNR == 1 { head = "" }
         /^[A-Za-z_].*[(]/ && !/;$/ { head = $0; first = 0 }
         head && !first && /[{]$/ { first = FNR + 1 }
         /^}/ { if (head && first && FNR - first > 60) { print FILENAME ":" first ": " FNR - first " lines (budget 60): " head; bad = 1 } head = "" }
         END { exit bad }' "$@"
}
long_functions $c_files $top_files || complain "functions over the budget"
long_functions $(printf '%s\n' $cuda_files | grep -vxE "$(echo $top_files | tr ' ' '|')") || echo "lint: long functions in CUDA files, listed only" >&2
# ptxas says where it had to serialise wgmma (C7510 and its neighbours; C7519 is no loss) and what it spills. The Hopper
# attention kernels in the product are those that its dispatch reaches: kernels.txt.
if have nvcc; then
    object=$(mktemp) kernels=$(mktemp)
    for file in llmc/cuda/attention/sm90/*.cu llmc/cuda/linear/*_sm90.cu llmc/cuda/decode/*.cu; do
        said=$(nvcc -std=c++17 -O3 -I. -gencode arch=compute_90a,code=sm_90a -Xcompiler -Wall,-Wextra,-Wno-unused-parameter,-Werror -Werror all-warnings --expt-relaxed-constexpr -Xptxas -v -c "$file" -o "$object" 2>&1) || complain "nvcc: $file"
        printf '%s\n' "$said" | grep -E 'C75[0-9][0-9]' | grep -v C7519 && complain "wgmma is serialised in $file"
        most=0 # bytes a kernel; those with dropout hold words of the mask across the wait for products
        case $file in *_dropout.cu) most=48 ;; esac
        # where the kernel of head size 64 serves 80, 24 registers are left for the threads that add dQ, and they spill a few
        printf '%s\n' "$said" | awk -v most=$most '
            /Compiling entry function/ { allowed = most; if (/hd64_.*Li80E/ && most < 28) allowed = 28 }
            /bytes spill/ { for (i = 4; i <= NF; i++) if ($i == "bytes" && $(i + 1) == "spill" && $(i - 1) > allowed) { bad = 1; print } }
            END { exit !bad }' && complain "registers spill in $file"
        case $file in */attention/*) nm -C "$object" | sed -n 's/^.* \(sm90_[a-z0-9_]*kernel.*\)(.*)$/\1/p' >>"$kernels" ;; esac
    done
    LC_ALL=C sort -u "$kernels" | diff llmc/cuda/attention/kernels.txt - || complain "the Hopper attention kernels are not those of llmc/cuda/attention/kernels.txt"
    for file in dev/*/*.cu; do # `make test` builds the lab only where there is a card
        nvcc -std=c++17 -I. -gencode arch=compute_90a,code=compute_90a -Xcompiler -Wall,-Wextra,-Wno-unused-parameter,-Werror -Werror all-warnings --expt-relaxed-constexpr -ptx "$file" -o "$object" || complain "nvcc: $file"
    done
    rm -f "$object" "$kernels"
fi
grep -nE '\basm\b *(volatile)? *\(' $cuda_files /dev/null | grep -v '^llmc/cuda/ptx/' && complain "inline PTX outside llmc/cuda/ptx"
# A folder of llmc/ includes its own headers and those of the folders before it in this list: no step back.
python3 - <<'END' || complain "a header of a later folder is included (order: base device tokenizer data model cpu cuda comm checkpoint run)"
import glob, re, sys
order = "base device tokenizer data model cpu cuda comm checkpoint run".split()
wrong = [f"{path}: {header}" for path in glob.glob("llmc/**/*.*", recursive=True) if path.endswith((".c", ".h", ".cu", ".cuh"))
         for header in re.findall(r'#include "(llmc/[^"]+)"', open(path, encoding="utf-8").read())
         for here, there in [(path.split("/")[1], header.split("/")[1])]
         if order.index(there) > order.index(here) or (here, there) == ("cuda", "cpu")]
print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
sys.exit(bool(wrong))
END
grep -nE '<<<' $(git ls-files -co --exclude-standard '*.c' '*.h') /dev/null && complain "a kernel launch in a C file"
# What is printed goes through terminal.h, which lets nothing pass that a terminal obeys (the device's own failures name sources
# and kernels alone, and its kernels are linked without the program).
grep -nE '\b(v?f?printf|f?puts|f?putc|putchar|perror)\(|fwrite\(.*\bstd(out|err)\b' llmc/*/*.c train_gpt2.cu /dev/null | grep -vE '^llmc/base/terminal\.c:' && complain "text for the terminal that does not go through llmc/base/terminal.h"
# `check NAME [ A ] && [ B ]` checks A alone: both go into one word, for eval.
quoted="'[^']*'|\"[^\"]*\""
for file in $(git ls-files -co --exclude-standard '*.sh'); do
    sed -E "s/$quoted//g" "$file" | grep -nE '^[^#]*\bcheck [^;]*\] *(&&|\|\|)' && complain "$file: a check whose second condition counts for nothing (check NAME eval '[ A ] && [ B ]')"
done

# A fault that no longer fits its file is tried by nobody.
python3 -B - <<'END' || complain "rows of dev/mutants whose old text is not in the file exactly once"
import sys
sys.path.insert(0, "dev/mutants")
import mutants
stale = [row.name() for kind in mutants.TABLES for row in mutants.read_table(kind) if row.text() is None]
print(*stale, sep="\n", end="\n" if stale else "")
sys.exit(bool(stale))
END

# ---- pages and results ----
# The front page is short; a link is [text](path) or [text](path#heading) outside of code blocks, the web's are not followed.
pages=$(git ls-files -co --exclude-standard '*.md')
[ "$(wc -l <README.md)" -le 130 ] || complain 'README.md has more than 130 lines'
awk 'length($0) > 120 { print FILENAME ":" FNR; bad = 1 } END { exit !bad }' README.md && complain 'README.md has lines over 120 characters'
for page in $pages; do
    for link in $(awk '/^```/ { code = !code } !code' "$page" | grep -o '](\([^)]*\))' | sed 's/^](//; s/)$//; s/#.*//'); do
        case $link in http*) ;; *) [ -e "$(dirname "$page")/$link" ] || complain "$page: a link to $link, which is not there" ;; esac
    done
done
for folder in llmc/*/; do
    grep -q "^| $(basename "$folder")/ |" llmc/README.md || complain "llmc/README.md does not say what $folder has"
done
for script in scripts/*.py scripts/*.sh; do
    grep -q "\`$(basename "$script")\`" scripts/README.md || complain "scripts/README.md does not say what $script does"
done
# Hints and pages call them as commands: data/text.py FILE.
for script in data/*.py scripts/*.py scripts/*.sh; do
    case $(head -n 1 "$script") in
    '#!'*) [ -x "$script" ] || complain "$script begins with #! and is not executable (chmod +x)" ;;
    *) [ ! -x "$script" ] || complain "$script is executable and does not begin with #!" ;;
    esac
done
for page in llmc/README.md dev/README.md dev/test/README.md dev/results/README.md data/README.md scripts/README.md; do
    grep -qF "]($page" README.md || complain "README.md does not lead to $page"
done
# Measured figures stand between marks that scripts/figures.sh fills, and nowhere else.
for page in $(grep -l '^<!-- figures ' $pages); do
    sed '/^<!-- figures/,/^<!-- .figures/d' "$page" | grep -nE '[0-9] ?(ms|tokens/s|[TG]FLOP/s|GiB|GB/s|%|nats a byte)([^A-Za-z]|$)' && complain "$page has a figure that was written by hand"
done
# said FILE WORD: a comment of the file begins so.
said() { grep -qE "^# $2:? +[^ ]" "$1" || complain "$1 does not say its $2"; }
for file in $(git ls-files -co --exclude-standard 'dev/results/*.csv'); do
    grep -qE '^# commit:? +[0-9a-f]{7,12}.?$' "$file" || complain "$file does not say its commit"
    said "$file" '(card|gpu|cpu)'
    said "$file" '(command|run)'
    case $file in *attention_runs/* | *train_runs/* | *compare_*) said "$file" torch && said "$file" FA3 ;; esac
done
for word in card commit command data; do
    grep -q "^{.*\"$word\": \"[^\"]" dev/results/cpu/default_run.jsonl || complain "default_run.jsonl does not say its $word"
done
for file in dev/results/nvidia-h200/*.md; do [ -f "${file%.md}.csv" ] || complain "$file: its CSV is not there"; done
[ "$status" -eq 0 ] && echo "lint: ok"
exit $status
