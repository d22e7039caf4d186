#!/bin/sh
# The figures of the pages are made from the results in dev/results: what stands between <!-- figures NAME --> and
# <!-- /figures --> in a page (README.md and the pages of llmc/ and dev/).
# Usage: scripts/figures.sh [--write] [RESULTS [PAGE...]]     (RESULTS: dev/results/nvidia-h200, with ../cpu beside it)
# Without --write it shows the lines that differ (-: the page has, +: the results say), exit code 1. --write makes the tables of
# medians (compare_*.md and .csv) from the runs in attention_runs/ and train_runs/ again, then the pages. To add a run: put its
# CSV there, --write. Run from the repository root.
set -eu
case ${1:-} in -h | --help) sed -n '2,8s/^# //p' "$0" && exit ;; esac
write=
[ "${1:-}" != --write ] || { write=1 && shift; }
results=${1:-dev/results/nvidia-h200}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- $(grep -rl --include='*.md' '^<!-- figures ' README.md llmc dev)
for file in "$@" "$results/compare_attention.md" "$results/compare_train.md" "$results/context.csv" "$results/../cpu/default_run.jsonl"; do
    [ -r "$file" ] || { echo "error: $file: cannot be read; hint: scripts/figures.sh --help" >&2; exit 2; }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

# common: awk functions for the Markdown of combine.py. said(NAME): of its header.
common='
/^- [A-Za-z0-9]+: / { name = $2; sub(/:$/, "", name); text = $0; sub(/^- [A-Za-z0-9]+: /, "", text); header[name] = text; if (name == "card") cards++; if (name == "run") runs++ }
function card() { return substr(header["card"], 1, index(header["card"], ",") - 1) }
function plain(cell) { sub(/ .*/, "", cell); return cell }
function model(name) { return name == "d12" ? "124M" : name == "d24" ? "350M" : name == "d36" ? "774M" : name == "d48" ? "1.5B" : name }
function way(name) { return name ~ /^flash3/ ? "FlashAttention-3" : name ~ /^flash/ ? "FlashAttention-2" : name ~ /^cudnn/ ? "cuDNN" : name }
function provenance() { return card() ", binary " header["commit"] "; torch " header["torch"] "; FlashAttention-3 of " header["FA3"] }
'

attention() {
    awk "$common"'
    /^### Head size/ { split($0, word, /[ ,]+/); size = word[4]; mask = word[5] == "full" ? "non-causal" : word[5]; direction = word[6]; next }
    /^[|] [0-9]/ {
        split($0, c, / *[|] */)
        if (!(c[2] in known)) { known[c[2]] = 1; lengths[++n] = c[2] }
        row = mask " " direction ", head size " size
        if (!(row in seen)) { seen[row] = 1; rows[++m] = row }
        speed[row, c[2]] = plain(c[3]) " / " plain(c[4]) " / " plain(c[5]) " / " plain(c[6])
        ratio[row, c[2]] = c[7]
        if (c[8] == "no") below = below (below ? "; " : "") row ", T = " c[2] ": " c[7]
    }
    /^must / { met = $0; sub(/^must \(1.05 x the best peer\): /, "", met); sub(/\.$/, "", met) }
    function table(title, cells, mask,    line, rule, i, j) {
        line = "| " title " |"; rule = "|---|"
        for (j = 1; j <= n; j++) { line = line " " lengths[j] " |"; rule = rule "---|" }
        print line "\n" rule
        for (i = 1; i <= m; i++) {
            if (index(rows[i], mask) != 1) continue
            line = "| " rows[i] " |"
            for (j = 1; j <= n; j++) line = line " " cells[rows[i], lengths[j]] " |"
            print line
        }
    }
    END {
        print "Medians of " runs " runs on " cards " cards (" provenance() ")."
        print "TFLOP/s: ours / FlashAttention-3 / cuDNN / FlashAttention-2.\n"
        table("T =", speed, "causal")
        print "\nOurs over the best of the three in the same run, median (least to most):\n"
        table("T =", ratio, "")
        print "\n1.05 or more: " met "." (below ? " Not so: " below "." : "")
    }' "$results/compare_attention.md"
}

training() {
    awk "$common"'
    /^### Training/ { inside = 1 }
    /^### Every way/ { inside = 0 }
    !inside && /^[|] d[0-9]+:/ { split($0, c, / *[|] */); if (c[4] != "-") ways[c[2]]++ }
    inside && /^[|] d[0-9]+:/ {
        split($0, c, / *[|] */)
        if (c[3] == "-") next
        split(c[2], word, /[:x]/)
        shape = model(word[1]) ", " word[2] " x " word[3]
        key[++n] = c[2]
        line[n] = "| " shape (c[13] ? ", `" c[13] "`" : "") " | " c[3] " | " c[5] " | " c[6] " | " c[7]
        rest[n] = " | " c[10] " | " c[11] " |"
        if (c[12] ~ /^no/) { sub(/^no /, "", c[12]); short = short (short ? "; " : "") shape ": " c[10] (c[12] ~ /<=/ ? " and " c[11] " GiB" : "") ", aimed at " c[12] }
        if (c[12] ~ /^n\/a/) open = open (open ? "; " : "") shape
    }
    END {
        print "Medians of the turns of 5 s (least to most; " provenance() ").\n"
        print "| model, batch x context | ours, tokens/s | TFLOP/s | PyTorch, tokens/s | its attention, mode (fastest of) | ratio | GiB, ours / PyTorch |\n|---|---|---|---|---|---|---|"
        for (i = 1; i <= n; i++) print line[i] " (" ways[key[i]] ")" rest[i]
        print "\n" (short ? "Short of the aim: " short "." : open ? "All others reach their aim." : "Every aim of scripts/combine.py is reached.") (open ? " Memory not measured: " open "." : "")
    }' "$results/compare_train.md"
}

# The front page: one length of attention, and every model that was trained, beside the fastest peer.
summary() {
    echo '| task | ours | fastest peer | ratio |'
    echo '|---|---|---|---|'
    awk "$common"'
    /^### Training/ { inside = 1 }
    /^### Every way/ { inside = 0 }
    inside && /^[|] d[0-9]+:/ {
        split($0, c, / *[|] */)
        split(c[2], word, /[:x]/)
        if (c[3] != "-") line[++n] = "| training " model(word[1]) ", " word[2] " x " word[3] (c[13] ? ", `" c[13] "`" : "") ", tokens/s | " plain(c[3]) " | " plain(c[6]) " (torch.compile, " way(c[7]) ") | " c[10] " |"
    }
    END { for (i = 1; i <= n; i++) print line[i]; print "Training: " provenance() >about }' about="$work/about_training" "$results/compare_train.md"
    awk "$common"'
    /^### Head size/ { split($0, word, /[ ,]+/); row = "attention, " word[5] " " word[6] ", head size " word[4]; causal = word[5] == "causal"; next }
    causal && /^[|] 8192 / {
        split($0, c, / *[|] */)
        best = plain(c[4]) + 0; name = "FlashAttention-3"
        if (plain(c[5]) + 0 > best) { best = plain(c[5]) + 0; name = "cuDNN" }
        if (plain(c[6]) + 0 > best) { best = plain(c[6]) + 0; name = "FlashAttention-2" }
        print "| " row ", T = 8192, TFLOP/s | " plain(c[3]) " | " best " (" name ") | " plain(c[7]) " |"
    }
    END { print "Attention: " provenance() >about }' about="$work/about_attention" "$results/compare_attention.md"
    echo
    sed 's/$/./' "$work/about_training"
    sed 's/$/./' "$work/about_attention"
}

# Several GPUs beside one. The file is that of one run of compare_scaling.py.
scaling() {
    [ -r "$results/compare_scaling.md" ] || { echo 'Not measured yet.' && return; }
    awk "$common"'
    /^### / { gpus = $2 }
    /^[|] d[0-9]+:/ {
        split($0, c, / *[|] */)
        split(c[2], word, /[:x\/]/)
        shape = model(word[1]) ", " word[2] " x " word[3] (word[4] ? ", " word[4] " tokens a step" : "")
        line[++n] = "| " shape
        for (i = 3; i <= 11; i++) if (i != 6) line[n] = line[n] " | " c[i]
        line[n] = line[n] " |"
        if (c[6] ~ /^no/) { sub(/^no /, "", c[6]); short = short (short ? "; " : "") shape ": " c[5] ", aimed at " c[6] }
    }
    END {
        print "Medians of the turns, tokens/s (least to most; " provenance() "; NCCL " header["NCCL"] ").\n"
        print "| model, batch x context a GPU | ours, 1 GPU | ours, " gpus " GPUs | % of linear | PyTorch, 1 GPU | PyTorch, " gpus " GPUs | % of linear | its buckets, MB | ratio |\n|---|---|---|---|---|---|---|---|---|"
        for (i = 1; i <= n; i++) print line[i]
        print "\n" (short ? "Short of the aim: " short "." : "Every aim of scripts/compare_scaling.py is reached.")
    }' "$results/compare_scaling.md"
}

context() {
    tr -d '\r' <"$results/context.csv" | awk -F, '
    BEGIN { n_modes = split("flash gelu linear block standard", modes, " "); split("none `gelu` `linear` `block` `standard`", titles, " ") }
    /^# card: / && !card { card = substr($1, 9) }
    /^# commit: / { commit = substr($0, 11); runs++ }
    /^# timed: / { timed++ }
    /^#/ || $1 == "T" { next }
    {
        if (!($1 in known)) { known[$1] = 1; lengths[++n] = $1 }
        used[$2] = 1
        cell[$1, $2] = $6 == "" ? sprintf("%.1f planned", $5) : $6 ($3 >= 5000 || timed == runs ? ", " $4 " tokens/s" : "")
        if ($6 != "" && ($5 - $6 > apart || $6 - $5 > apart)) apart = $5 > $6 ? $5 - $6 : $6 - $5
    }
    END {
        for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (lengths[j] + 0 < lengths[i] + 0) { t = lengths[i]; lengths[i] = lengths[j]; lengths[j] = t }
        print "GiB of device memory, GPT-2 124M in bf16, one sequence a step (" card ", binary " commit ")."
        print "They are measured: `--memory` plans " sprintf("%.1f", apart) " GiB more or less at most. Speed where a step or a run lasts 5 s.\n"
        line = "| context T |"; rule = "|---|"
        for (j = 1; j <= n_modes; j++) if (modes[j] in used) { line = line " " titles[j] " |"; rule = rule "---|" }
        print line "\n" rule
        for (i = 1; i <= n; i++) {
            line = "| " lengths[i] " |"
            for (j = 1; j <= n_modes; j++) if (modes[j] in used) line = line " " cell[lengths[i], modes[j]] " |"
            print line
        }
    }'
}

default_run() {
    awk -F'"' '
    /"commit"/ { for (i = 2; i < NF; i += 4) about[$i] = $(i + 2) }
    /"val_loss"/ { step = $3; gsub(/[^0-9]/, "", step); loss = $5; gsub(/[^0-9.]/, "", loss) }
    END {
        print "The run without flags on a CPU ends at " sprintf("%.3f", loss) " nats a byte of validation loss,"
        print "after " step " steps of " substr(about["data"], 1, index(about["data"], ",") - 1) " (binary " about["commit"] ", `" about["command"] "`)."
    }' "$results/../cpu/default_run.jsonl"
}

if [ "$write" ]; then
    for kind in attention train; do
        python3 scripts/combine.py $kind "$results/${kind}_runs"/*.csv --csv "$results/compare_$kind.csv" --markdown "$results/compare_$kind.md" >/dev/null
    done
fi
for block in summary attention training scaling context default_run; do $block >"$work/$block"; done
status=0
for page in "$@"; do
    awk -v work="$work" '
    /^<!-- figures / {
        file = work "/" $3
        print
        while ((status = (getline line <file)) > 0) print line
        close(file)
        if (status < 0) { print "error: no figures are named " $3 >"/dev/stderr"; exit 2 }
        skip = 1
    }
    /^<!-- \/figures -->/ { skip = 0 }
    !skip' "$page" >"$work/page"
    if [ "$write" ]; then
        cmp -s "$work/page" "$page" || cp "$work/page" "$page"
    else
        diff -U0 "$page" "$work/page" | sed 1,2d >"$work/diff"
        [ ! -s "$work/diff" ] || { echo "$page:" && cat "$work/diff" && status=1; }
    fi
done
exit $status
