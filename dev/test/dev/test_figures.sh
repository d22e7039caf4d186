#!/bin/sh
# scripts/figures.sh: every figure of the pages is made from a committed result, and one changed by hand is seen.
# Usage: dev/test/dev/test_figures.sh, from the repository root.
set -u
test=figures
. dev/test/user.sh
results=dev/results/nvidia-h200

# figures ARGS...: scripts/figures.sh; $status.
figures() {
    scripts/figures.sh "$@" >"$work/out" 2>"$work/err"
    status=$?
}
# seen NAME: the last run of figures showed a line that differs.
seen() { check "$1" [ "$status" -eq 1 ]; check "$1: the line is shown" grep -q '^-' "$work/out"; }

pages=$(grep -rl --include='*.md' '^<!-- figures ' README.md llmc dev)
figures
check 'the pages have the figures of the results' [ "$status" -eq 0 ]
check 'README has figures' grep -q '^<!-- figures ' README.md
check 'each table stands in a page' [ "$(cat $pages | grep -c '^<!-- figures ')" -ge 5 ]

# One digit of each line of figures changed by hand, line by line.
unseen= lines=0
for page in $pages; do
    for line in $(awk '/^<!-- .figures/ { inside = 0 } inside && /[0-9]/ { print NR } /^<!-- figures/ { inside = 1 }' "$page"); do
        awk -v line="$line" 'NR == line { match($0, /[0-9][^0-9]*$/); d = substr($0, RSTART, 1); $0 = substr($0, 1, RSTART - 1) (d + 1) % 10 substr($0, RSTART + 1) } 1' "$page" >"$work/page"
        figures $results "$work/page"
        [ "$status" -eq 1 ] && grep -q '^-.' "$work/out" || unseen="$unseen $page:$line"
        lines=$((lines + 1))
    done
done
check 'lines with figures' [ "$lines" -ge 30 ]
check "a digit changed by hand is seen in every line of figures (not in:$unseen)" [ -z "$unseen" ]

# The other way round: a digit of a result.
for change in 'compare_attention.md s/^| 1024 | /&1/' 'compare_train.md s/^| d12:[0-9x]* | /&1/' 'context.csv s/^1024,[^,]*,[^,]*,[^,]*,[^,]*,/&1/' \
    'compare_train.md s/^- commit: /&0/' 'compare_scaling.md s,^| d12:64x1024/524288 | ,&1,'; do
    mkdir -p "$work/results" "$work/cpu" && cp $results/compare_*.md $results/context.csv "$work/results" && cp dev/results/cpu/* "$work/cpu"
    sed "${change#* }" "$results/${change%% *}" >"$work/results/${change%% *}"
    figures "$work/results"
    seen "$change is seen"
done
# A shape that gave no figure of ours is left out.
cp $results/compare_*.md $results/context.csv "$work/results"
sed '/^### Training/,/^### Every/s/^| d12:64x1024 .*/&\n| d12:9x1024 | - | - | - | - | - | - | - | - | - | - | |/' $results/compare_train.md >"$work/results/compare_train.md"
check 'a shape without a figure stands in the result' grep -q '^| d12:9x1024 | - ' "$work/results/compare_train.md"
figures "$work/results"
check 'a shape without a figure is left out' [ "$status" -eq 0 ]
# Memory that was not measured is no aim that is reached, nor one that is missed.
sed -E 's/^([|] d12:.*[|]) [0-9.]+( \/ [0-9.]+ [|]) (yes|no) (>=1.30 <=0.7)/\1 n\/a\2 n\/a \4/; s/[|] no (>=)/| yes \1/' $results/compare_train.md >"$work/results/compare_train.md"
figures "$work/results"
check 'memory that was not measured: so it is said' grep -qx '+All others reach their aim. Memory not measured: 124M, 1 x 131072; 124M, 4 x 16384; 124M, 1 x 65536.' "$work/out"
echo '<!-- figures nothing -->' >"$work/page"
command_refuses 'no figures are named nothing' scripts/figures.sh $results "$work/page"
command_refuses "/none/compare_attention.md: cannot be read" scripts/figures.sh "$work/none"

# The tables of medians are those of their runs.
if command -v python3 >/dev/null 2>&1; then
    for kind in attention train; do
        PYTHONDONTWRITEBYTECODE=1 python3 scripts/combine.py $kind $results/${kind}_runs/*.csv --csv "$work/all.csv" --markdown "$work/all.md" >"$work/out" 2>"$work/err"
        for ending in csv md; do
            grep -v '^[-#] command: ' "$work/all.$ending" >"$work/expected"
            grep -v '^[-#] command: ' "$results/compare_$kind.$ending" | diff - "$work/expected" >"$work/out"
            check "compare_$kind.$ending has the medians of its runs" [ ! -s "$work/out" ]
        done
    done
else
    skipped=$((skipped + 4))
fi
finish
