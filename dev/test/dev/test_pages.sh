#!/bin/sh
# The pages (README.md and the Markdown of data/, llmc/ and dev/): the front page is short, and every link leads to a file.
# Usage: dev/test/dev/test_pages.sh, from the repository root.
set -u
test=pages
. dev/test/user.sh
: >"$work/err"

wc -l README.md >"$work/out"
check 'README.md has at most 130 lines' [ "$(wc -l <README.md)" -le 130 ]
awk 'length($0) > 120 { print FNR ": " $0 }' README.md >"$work/out"
check 'README.md has no line over 120 characters' [ ! -s "$work/out" ]

# A link is [text](path) or [text](path#heading) outside of code blocks; addresses of the web are not followed.
pages=$(find README.md data llmc dev -name '*.md' ! -path 'data/.*')
links=0
: >"$work/out"
for page in $pages; do
    for link in $(awk '/^```/ { code = !code } !code' "$page" | grep -o '](\([^)]*\))' | sed 's/^](//; s/)$//; s/#.*//'); do
        links=$((links + 1))
        case $link in http*) ;; *) [ -e "$(dirname "$page")/$link" ] || echo "$page: $link" >>"$work/out" ;; esac
    done
done
check 'the pages have links' [ "$links" -ge 50 ]
check 'every link leads to a file' [ ! -s "$work/out" ]
for folder in llmc/*/; do
    name=$(basename "$folder")
    check "llmc/README.md says what $folder has" grep -q "^| $name/ |" llmc/README.md
done
for page in llmc/README.md dev/README.md dev/test/README.md dev/results/README.md data/README.md; do
    check "README.md leads to $page" grep -qF "]($page" README.md
done
finish
