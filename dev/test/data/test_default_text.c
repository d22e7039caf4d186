/* scripts/default_text.sh: which text a run without --train gets, and that a bad download never becomes one.
 * It runs in a copy of the tree's outline, with a curl that hands out what the test wants. */
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "dev/test/folder.h"

/* Runs a shell command in the folder; its exit code. */
static int sh(const char *format, ...) {
    char command[1024], whole[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    snprintf(whole, sizeof whole, "cd %s && { %s; }", folder, command);
    int status = system(whole);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Runs the script with `environment` and the false curl before the real one; output to the file log. */
static int run(const char *environment) {
    return sh("env -u TEXT PATH=\"$PWD/bin:$PATH\" %s sh scripts/default_text.sh >log 2>&1", environment);
}

/* The false curl: `body` is a shell command that writes to "$out". */
static void set_curl(const char *body) {
    CHECK(sh("printf '%%s\\n' '#!/bin/sh' 'while [ \"$1\" != -o ]; do shift; done; out=$2' '%s' >bin/curl && "
             "chmod +x bin/curl",
             body) == 0,
          "cannot write bin/curl");
}

static bool has(const char *file, const char *words) {
    return sh("grep -q -- \"%s\" %s", words, file) == 0;
}

static void test_fallback(void) {
    set_curl("echo the network is away >&2; exit 6");
    CHECK(run("") == 0, "the project's own text serves");
    CHECK(has("data/default.source.txt", "^the project's own sources"), "the description");
    CHECK(has("data/default.txt", "a readme"), "the text");
    CHECK(has("log", "^\\*\\*\\* .*the network is away") && has("log", "TEXT=path"),
          "said loudly, with the reason");
    CHECK(run("") == 0 && has("log", "TEXT=path"), "said again while it lasts");
}

static void test_bad_downloads(void) {
    set_curl("echo short >$out");
    CHECK(run("") == 0 && has("log", "expected 1115394 bytes, found 6"), "a wrong size");
    set_curl("head -c 1115394 /dev/zero >$out");
    CHECK(run("") == 0 && has("log", "expected sha256 86c4e6aa"), "a wrong checksum");
    CHECK(has("data/default.source.txt", "^the project's own sources"), "the fallback stays");
    CHECK(sh("ls data | grep -q partial") != 0, "a partial file is left");
}

static void test_text(void) {
    CHECK(run("TEXT=missing.txt") == 2 && has("log", "^error: TEXT=missing.txt: expected a readable file"),
          "a missing file");
    CHECK(run("TEXT=empty.txt") == 2 && has("log", "empty.txt: the file is empty"), "an empty file");
    sh("printf 'text\\000\\001' >picture.png");
    CHECK(run("TEXT=picture.png") == 2 && has("log", "picture.png: expected text, found null bytes"),
          "a picture");
    CHECK(run("TEXT=.") == 2 && has("log", "^error: TEXT=.: expected"), "a folder");
    CHECK(has("data/default.source.txt", "^the project's own sources"), "a bad TEXT changes nothing");
    CHECK(run("TEXT=mine.txt") == 0 && sh("cmp -s mine.txt data/default.txt") == 0,
          "TEXT replaces the fallback");
    CHECK(has("data/default.source.txt", "^TEXT=mine.txt$"), "the description");
    CHECK(run("") == 0 && sh("cmp -s mine.txt data/default.txt") == 0, "and stays without TEXT");
    CHECK(sh("echo more >>mine.txt") == 0 && run("TEXT=mine.txt") == 0 && has("data/default.txt", "^more$"),
          "a changed file is taken again");
}

int main(void) {
    if (!REQUIRE(mkdtemp(folder) != NULL, "cannot make a folder in /tmp"))
        return check_finish("default_text");
    char here[512];
    if (CHECK(getcwd(here, sizeof here) &&
                  sh("mkdir bin scripts llmc && cp '%s/scripts/default_text.sh' scripts/", here) == 0,
              "run from the repository root")) {
        sh("echo a readme >README.md; echo to be or not >mine.txt; : >empty.txt");
        test_fallback();
        test_bad_downloads();
        test_text();
    }
    remove_tree(folder);
    return check_finish("default_text");
}
