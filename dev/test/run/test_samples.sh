#!/bin/sh
# Text from a trained model, as a user asks for it: what goes to stdout and what to stderr, several samples, where a text
# ends, prompts from files, a chat, and what is refused.
# Usage: dev/test/run/test_samples.sh [PROGRAM]
program=$(realpath "${1:-./train_gpt2}")
test=samples
. dev/test/user.sh
make_text 300
run --model nano --layers 2 --heads 2 --channels 32 --batch 8 --seq 64 --steps 100 --train "$work/text.txt" --seed 7 --out "$work/model" --sample-tokens 20 --samples 3 --sample-every 50
check "training: exit code $status" [ "$status" -eq 0 ]
check "three samples of a step, in order" [ "$(grep '^--- sample' "$work/out" | head -n 3)" = "$(printf -- '--- sample %d of 3, step 50 ---\n' 1 2 3)" ]
check "the log has all three" [ "$(grep -c '"step": *50, *"sample"' "$work/model/log.jsonl")" -eq 3 ]

drawn() { run --model "$work/model" --seed 3 --sample-tokens 40 "$@"; }
# drawn_together ARGS...: both outputs in $work/out, as a terminal shows them.
drawn_together() { "$program" --device cpu --model "$work/model" --seed 3 --sample-tokens 40 "$@" >"$work/out" 2>&1 </dev/null; }
# firsts: the first word of each line of what was said, up to the frame's.
firsts() { sed '/^---/q' "$1" | sed 's/ .*//' | tr '\n' ' '; }

# ---- what goes where ----
drawn --prompt "line 1"
check "a sample: exit code $status" [ "$status" -eq 0 ]
cp "$work/out" "$work/one"
check "a sample: the text alone on stdout" eval '[ "$(wc -c <"$work/one")" -ge 47 ] && [ "$(head -c 6 "$work/one")" = "line 1" ]'
check "a sample: what it is, on stderr, and no frame of nothing" [ "$(firsts "$work/err")" = "program device model tokenizer sampling sampled " ]
check "a sample: what it was asked" grep -qE '^sampling +1 x 40 tokens at most, temperature 0.8, top-k 200, seed 3$' "$work/err"
check "a sample: what it took" grep -qE '^sampled +40 tokens, the first after [0-9]+ ms, [0-9]+ tokens/s, ([0-9]{1,2} % of the memory bandwidth|100 % of the memory bandwidth|the weights lie in a cache)$' "$work/err"
long=$(for i in 1 2 3 4 5 6 7 8 9; do printf 'line %d: the quick ' $i; done)
drawn --prompt "$long"
check "a long prompt: how much of it is read" grep -qE '^prompt +the last 64 of its 1[56][0-9] tokens, all that the model.s context holds$' "$work/err"
drawn --prompt "$long$long$long$long$long$long$long$long"
check "a prompt of thousands: its tokens as people read them" grep -qE '^prompt +the last 64 of its 1,[0-9]{3} tokens,' "$work/err"
drawn_together --prompt "$long"
check "a long prompt: that is said before it" [ "$(firsts "$work/out")" = "program device model tokenizer sampling prompt --- " ]
drawn_together --prompt "line 1"
check "a sample where both outputs are one: in a frame" [ "$(sed -n '/^--- sample, step 100 ---$/,/^---$/p' "$work/out" | sed '1d;$d')" = "$(cat "$work/one")" ]
drawn_together --prompt "line 1" --samples 3
check "three samples where both outputs are one: each in a frame" [ "$(grep -e '^---' "$work/out" | tr '\n' ' ')" = "$(for i in 1 2 3; do printf -- '--- sample %d of 3, step 100 --- --- ' $i; done)" ]
run --model "$work/model" --prompt "line 1" --memory
check "--memory of samples: exit code $status" [ "$status" -eq 0 ]
check "--memory of samples: weights and a cache" grep -qE '^  samples +[0-9.]+ [KM]iB more, while they are drawn$' "$work/out"
check "--memory of samples: of a batch one token" grep -qE '^  tokens +scratch +4 B ' "$work/out"
check "--memory of samples: nothing of training, no batch" [ "$(grep -cE '^  (gradients|optimizer|snapshot|largest)' "$work/out")" -eq 0 ]
drawn --prompt "line 1" --samples 5
check "five samples: four lines between them" [ "$(grep -cx -e '---' "$work/out")" -eq 4 ]
check "five samples: the first is the one" [ "$(sed '/^---$/,$d' "$work/out")" = "$(cat "$work/one")" ]
cp "$work/out" "$work/five"
drawn --prompt "line 1" --samples 70
check "seventy samples begin as five" [ "$(head -c "$(wc -c <"$work/five")" "$work/out")" = "$(cat "$work/five")" ]

# ---- where a text ends ----
drawn --prompt "line 1" --temperature 0
text=$(cat "$work/out")
stop=$(printf %s "$text" | head -n 1 | cut -c20-23)
drawn --prompt "line 1" --temperature 0 --stop "$stop"
check "--stop '$stop': the text before it" [ "$(cat "$work/out")" = "${text%%"$stop"*}" ]
drawn --prompt "line 1" --temperature 0 --stop "not to be found"
check "--stop at no place: the whole text" [ "$(cat "$work/out")" = "$text" ]
stop="$(printf 'é%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)x"
drawn --prompt "line 1" --stop "$stop"
check "a long --stop is said whole" grep -qF ", until \"$stop\", temperature" "$work/err"
drawn --prompt "line 1" --top-p 0
check "--top-p 0: the likeliest alone" [ "$(cat "$work/out")" = "$text" ]
drawn --prompt "line 1" --min-p 1
check "--min-p 1: the likeliest alone" [ "$(cat "$work/out")" = "$text" ]
drawn --prompt "line 1" --top-k 1
check "--top-k 1: the likeliest alone" [ "$(cat "$work/out")" = "$text" ]

# ---- prompts from files ----
printf 'line 1' >"$work/prompt"
drawn --prompt-file "$work/prompt" --temperature 0
check "--prompt-file: as --prompt" [ "$(cat "$work/out")" = "$text" ]
"$program" --device cpu --model "$work/model" --sample-tokens 40 --temperature 0 --prompt-file - <"$work/prompt" >"$work/out" 2>"$work/err"
check "--prompt-file -: from stdin" [ "$(cat "$work/out")" = "$text" ]
from_stdin() { "$program" --device cpu --model "$work/model" --sample-tokens 40 --prompt-file - >"$work/out" 2>"$work/err"; }
from_stdin <"$work"
status=$?
refused "a prompt from a folder" '^error: --prompt-file: cannot read stdin: Is a directory$'
head -c 67108865 /dev/zero | from_stdin
status=$?
refused "a prompt that is too long" '^error: --prompt-file: stdin: expected at most 67108864 bytes, found more$'
head -c 67108864 /dev/zero | from_stdin
status=$?
refused "a prompt of nulls, as long as one may be" '^error: --prompt-file: -: byte 0 is 0, expected text$'
printf 'line 1\r\nline 2' >"$work/windows"
drawn --prompt-file "$work/windows"
check "a prompt of Windows: its lines end as they did" [ "$(head -c 14 "$work/out")" = "$(cat "$work/windows")" ]
printf 'li\000ne' >"$work/null"
drawn --prompt-file "$work/null"
refused "a prompt with a null" '^error: --prompt-file: .*/null: byte 2 is 0, expected text$'
drawn --prompt-file "$work/missing"
refused "a prompt file that is not there" '^error: --prompt-file: .*/missing: No such file'
run --model "$work/model" --train "$work/text.txt" --prompt-file "$work/prompt" --steps 1 --sample-tokens 4 --eval-batches 1 --out "$work/prompted"
check "--prompt-file in training: begins its samples" [ "$(sed -n '/^--- sample/{n;p;}' "$work/out" | cut -c 1-6)" = "line 1" ]
check "--prompt-file in training: its text makes no checkpoint larger" grep -qE '"prompt": *null' "$work/prompted/step_00000001/trainer_state.json"
drawn --prompt a --prompt-file "$work/prompt"
refused "two prompts" '^error: --prompt and --prompt-file: '
run --chat --prompt a
refused "a chat without a model" '^error: --chat needs a trained model'
drawn --prompt a --top-p 1.5
refused "--top-p 1.5" "^error: --top-p: '1.5' is not a number from 0 to 1"
drawn --prompt a --samples 0
refused "--samples 0" "^error: --samples: '0' is not a whole number from 1 to "

# ---- another's model ends its texts at a token that is no end-of-text ----
run --model "$work/model" --export "$work/theirs"
mv "$work/theirs/config.json" "$work/config"
for ends in 'null' '300' '10' '[300, 10]'; do
    sed "s/\"eos_token_id\": null/\"eos_token_id\": $ends/" "$work/config" >"$work/theirs/config.json"
    run --model "$work/theirs" --prompt a --sample-tokens 4
    check "eos_token_id $ends: exit code $status" [ "$status" -eq 0 ]
    case $ends in *10*) notes=1 ;; *) notes=0 ;; esac
    check "eos_token_id $ends: $notes notes" [ "$(grep -c '^note: by eos_token_id .* token 10, "?", .*hint: --stop' "$work/err")" -eq $notes ]
done
cp "$work/config" "$work/theirs/config.json"
echo '{"eos_token_id": 97}' >"$work/theirs/generation_config.json"
run --model "$work/theirs" --prompt a --sample-tokens 4
check "eos_token_id of generation_config.json: a note" grep -q '^note: by eos_token_id .* token 97, "a", ' "$work/err"
run --model "$work/theirs" --prompt a --sample-tokens 4 --stop a
check "eos_token_id and --stop: no note" [ "$(grep -c '^note: by eos_token_id' "$work/err")" -eq 0 ]

# ---- equals ----
# A model of zeros: all bytes are as likely. Of the first hundred a tenth is 0 to 9, and the next one, 10, ends a line.
zeros() { head -c $(($(wc -c <"$1") - $2)) /dev/zero; }
cp -r "$work/theirs" "$work/zeros" && cp "$work/config" "$work/zeros/config.json" && rm "$work/zeros/generation_config.json"
weights=$work/theirs/model.safetensors
header=$((8 + $(od -An -tu8 -N8 "$weights")))
{ head -c $header "$weights" && zeros "$weights" $header; } >"$work/zeros/model.safetensors"
# equals P: so many lines end in what is drawn of them.
equals() {
    run --model "$work/zeros" --prompt a --sample-tokens 300 --temperature 1 --top-k 100 --top-p "$1"
    lines=$(sed '$d' "$work/out" | grep -c '')
}
equals 0.1
check "--top-p 0.1 of a hundred equals: exit code $status" [ "$status" -eq 0 ]
check "--top-p 0.1 of a hundred equals: ten" [ "$lines" -eq 0 ]
equals 0.11
check "--top-p 0.11 of a hundred equals: eleven" [ "$lines" -gt 0 ]

# ---- where the text does not arrive ----
if [ -c /dev/full ]; then
    lost='^error: the output could not be written: No space left on device$'
    "$program" --device cpu --model "$work/model" --prompt "line 1" --samples 500 --sample-tokens 50000000 >/dev/full 2>"$work/err" </dev/null &
    child=$!
    ended
    check "a full disk: no more is drawn: exit code $status" [ "$status" -eq 1 ]
    check "a full disk: said in the last line" sh -c 'tail -n 1 "$0" | grep -qE "$1"' "$work/err" "$lost"
    yes "line 1" | head -n 300 | "$program" --device cpu --model "$work/model" --chat --sample-tokens 20 >/dev/full 2>"$work/err"
    check "a full disk, a chat: said in the last line" sh -c 'tail -n 1 "$0" | grep -qE "$1"' "$work/err" "$lost"
    check "a full disk, a chat: that is its end" [ "$(grep -c '^sampled' "$work/err")" -eq 0 ]
else
    skipped=$((skipped + 4))
fi

# ---- a chat ----
chat() { "$program" --device cpu --model "$work/model" --chat --seed 3 --temperature 0 "$@" >"$work/out" 2>"$work/err"; }
printf 'line 1\nline 2' | chat --sample-tokens 12
check "a chat: exit code $?" [ $? -eq 0 ]
check "a chat: says what it does with turns" grep -q '^note: a base model goes on with the text so far, your lines in it; .*12 tokens' "$work/err"
check "a chat: what it took, of both answers" grep -qE '^sampled +24 tokens' "$work/err"
cp "$work/out" "$work/answers"
printf 'line 1\n' >"$work/prompt"
run --model "$work/model" --seed 3 --temperature 0 --sample-tokens 12 --prompt-file "$work/prompt"
check "a chat: the first answer goes on with the first line" [ "$(head -c 12 "$work/answers")" = "$(tail -c +8 "$work/out" | head -c 12)" ]
check "a chat: an answer ends its line" [ "$(tail -c 1 "$work/answers" | od -An -c | tr -d ' ')" = '\n' ]
{ cat "$work/prompt"; head -c 12 "$work/answers"; [ "$(head -c 12 "$work/answers" | tail -c 1 | od -An -c | tr -d ' ')" = '\n' ] || echo; echo "line 2"; } >"$work/history"
run --model "$work/model" --temperature 0 --sample-tokens 12 --prompt-file "$work/history"
check "a chat: the second goes on with all before it" [ "$(tail -c +$(($(wc -c <"$work/history") + 1)) "$work/out" | head -c 12)" = "$(tail -c +13 "$work/answers" | sed '1{/^$/d}' | head -c 12)" ]

printf 'line\0 1\n' | chat --sample-tokens 12
cp "$work/out" "$work/answers"
printf 'line? 1\n' | chat --sample-tokens 12
check "a chat: of a line with a null all is read" cmp -s "$work/answers" "$work/out"

# SIGINT ends the answer; the chat goes on, and stdin's end ends it.
mkfifo "$work/typed"
: >"$work/out"
"$program" --device cpu --model "$work/model" --chat --sample-tokens 50000000 <"$work/typed" >"$work/out" 2>"$work/err" &
child=$!
exec 3<>"$work/typed" # waits for no reader
echo "line 1" >&3
await [ -s "$work/out" ]
kill -INT $child
# all_sleep: no thread computes, nor would if it had a core; one may wake another between two looks.
all_sleep() {
    for look in 1 2 3; do ! grep -hs '^State:' /proc/$child/task/*/status | grep -q '^State:.[^S]' || return 1; done
}
await all_sleep
check "SIGINT in an answer: the chat goes on" kill -0 $child
size=$(wc -c <"$work/out")
echo "line 2" >&3
grown() { [ "$(wc -c <"$work/out")" -gt $((size + 4)) ]; }
await grown
check "SIGINT in an answer: the next line has one" grown
kill -INT $child
exec 3>&-
ended
check "the end of stdin ends the chat: exit code $status" [ "$status" -eq 0 ]
check "the end of stdin: what it took" grep -q '^sampled ' "$work/err"
finish
