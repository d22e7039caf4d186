#!/bin/sh
# Puts the default training text in place, once: data/default.txt, and data/default.source.txt, one line that says
# what it is. In this order: the file named by the environment variable TEXT; TinyShakespeare from its public
# address, verified; the project's own sources and README, where there is no network. What is there already stays, a
# text without a description, too, which is yours; but TEXT replaces any other text, of which yours is kept as
# data/default.yours.N.txt, and a fallback is replaced once TinyShakespeare can be had.
# Usage: [TEXT=path] scripts/default_text.sh, from anywhere. Exit 2: TEXT cannot be used.
set -u
cd "$(dirname "$0")/.." || exit 1
text=data/default.txt
source=data/default.source.txt
url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
size=1115394
sha256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
seconds=20 # for the whole download; 1 MB, so a slower line is as good as none
partial=data/default.$$.partial
trap 'rm -f "$partial"' EXIT
trap 'exit 1' HUP INT TERM

stop() { # message, exit code
    echo "error: $1" >&2
    exit "$2"
}
sha256_of() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum <"$1"
    elif command -v shasum >/dev/null 2>&1; then shasum -a 256 <"$1"
    elif command -v openssl >/dev/null 2>&1; then openssl dgst -sha256 -r <"$1"
    fi | cut -d ' ' -f 1
}
# The partial file becomes the text. The old description goes first, so that none ever names another text.
install_as() { # description
    keep_yours
    rm -f "$source"
    mv "$partial" "$text" && echo "$1" >"$source" || stop "cannot write $text: is data/ writable, the disk full?" 1
    echo "default text: $1, $(($(wc -c <"$text"))) bytes in $text"
}
# A text that nothing describes was not put there by this script.
keep_yours() {
    [ -s "$text" ] && [ -z "$was" ] && ! cmp -s "$partial" "$text" || return 0
    n=1
    while [ -e "data/default.yours.$n.txt" ]; do n=$((n + 1)); done
    mv "$text" "data/default.yours.$n.txt" || stop "cannot keep $text as data/default.yours.$n.txt" 1
    echo "note: $text was your own; kept as data/default.yours.$n.txt"
}
# True with the verified TinyShakespeare in the partial file; otherwise says why not.
download() {
    if command -v curl >/dev/null 2>&1; then
        why=$(curl -fsSL --connect-timeout 5 --max-time $seconds -o "$partial" "$url" 2>&1) || return 1
    elif command -v wget >/dev/null 2>&1; then
        why=$(wget -nv --tries=1 --connect-timeout=5 --read-timeout=$seconds -O "$partial" "$url" 2>&1) || return 1
    else
        why='neither curl nor wget is installed'
        return 1
    fi
    found=$(($(wc -c <"$partial")))
    [ "$found" -eq $size ] || { why="expected $size bytes, found $found"; return 1; }
    found=$(sha256_of "$partial")
    [ "$found" = $sha256 ] || { why="expected sha256 $sha256, found '$found'"; return 1; }
}

mkdir -p data || stop 'cannot make the folder data/' 1
was=$(cat "$source" 2>/dev/null)
if [ -n "${TEXT:-}" ]; then
    [ -f "$TEXT" ] && [ -r "$TEXT" ] || stop "TEXT=$TEXT: expected a readable file (a path relative to $PWD, or absolute)" 2
    [ -s "$TEXT" ] || stop "TEXT=$TEXT: the file is empty" 2
    cmp -s "$TEXT" "$text" && [ "$was" = "TEXT=$TEXT" ] && exit 0
    [ "$(head -c 65536 "$TEXT" | tr -d '\000' | wc -c)" -eq "$(head -c 65536 "$TEXT" | wc -c)" ] ||
        stop "TEXT=$TEXT: expected text, found null bytes" 2
    cat "$TEXT" >"$partial" || stop "cannot copy TEXT=$TEXT into data/" 1
    install_as "TEXT=$TEXT"
    exit 0
fi
if [ -s "$text" ]; then
    case $was in "the project's own"*) ;; *) exit 0 ;; esac
fi
if download; then
    install_as 'TinyShakespeare (sha256 ok)'
    exit 0
fi
why=$(printf '%s' "$why" | tr '\n' ' ')
if [ ! -s "$text" ]; then
    cat README.md Makefile train_gpt2.cu llmc/*/*.h llmc/*/*.c llmc/cuda/*/*.cu* >"$partial" 2>/dev/null
    [ -s "$partial" ] || stop "no TinyShakespeare ($why) and no sources to train on; pass TEXT=path" 1
    install_as "the project's own sources and README (TinyShakespeare could not be had)" >/dev/null
fi
cat >&2 <<END
*** TinyShakespeare could not be had: $why
*** The default text ($text) is the project's own sources and README instead. For another: the same make with TEXT=path
END
