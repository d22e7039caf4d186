#include "file_kind.h"
#include <string.h>

/* How the file begins (`begin` at byte `at`), what it is then, and how its text can be had. To refuse one more kind,
 * add a row, and one to BINARY in data/common.py; kinds whose text is beyond help have no hint of their own. */
static const struct {
    int at, n;
    const char *begin, *name, *hint;
} kinds[] = {
    {0,   2,  "\x1F\x8B",           "gzip",               "gunzip -k FILE"                                    },
    {0,   4,  "\x28\xB5\x2F\xFD",   "zstd",               "unzstd FILE"                                       },
    {0,   6,
     "\xFD"
     "7zXZ\0",                      "xz",                 "unxz -k FILE"                                      },
    {4,   6,  "1AY&SY",             "bzip2",              "bunzip2 -k FILE"                                   },
    {0,   4,  "\x04\x22\x4D\x18",   "lz4",                "unlz4 FILE"                                        },
    {0,   4,  "PK\3\4",             "zip",                "unzip FILE"                                        },
    {0,   6,  "7z\xBC\xAF\x27\x1C", "7-zip",              "7z x FILE"                                         },
    {257, 5,  "ustar",              "a tar archive",      "tar xf FILE"                                       },
    {0,   5,  "PAR1\x15",           "parquet",            "data/text.py makes shards of a file named .parquet"},
    {0,   8,  "ARROW1\0\0",         "arrow",              "write its text column as lines of text"            },
    {0,   4,  "\xFF\xFE\0\0",       "UTF-32 text",        "iconv -f UTF-32 -t UTF-8 FILE"                     },
    {0,   4,  "\0\0\xFE\xFF",       "UTF-32 text",        "iconv -f UTF-32 -t UTF-8 FILE"                     },
    {0,   2,  "\xFF\xFE",           "UTF-16 text",        "iconv -f UTF-16 -t UTF-8 FILE"                     },
    {0,   2,  "\xFE\xFF",           "UTF-16 text",        "iconv -f UTF-16 -t UTF-8 FILE"                     },
    {0,   8,  "\x89PNG\r\n\x1A\n",  "a PNG picture",      NULL                                                },
    {0,   3,  "\xFF\xD8\xFF",       "a JPEG picture",     NULL                                                },
    {0,   6,  "GIF87a",             "a GIF picture",      NULL                                                },
    {0,   6,  "GIF89a",             "a GIF picture",      NULL                                                },
    {0,   5,  "%PDF-",              "PDF",                "pdftotext FILE"                                    },
    {0,   6,  "\x93NUMPY",          "a numpy array",      NULL                                                },
    {0,   8,  "\x89HDF\r\n\x1A\n",  "HDF5",               NULL                                                },
    {0,   4,
     "\x7F"
     "ELF",                         "a program",          NULL                                                },
    {0,   16, "SQLite format 3\0",  "an SQLite database", NULL                                                },
};

static bool refuse(const char *path, const char *name, const char *hint, Error *err) {
    return fail(err, EXIT_INPUT, "%s looks like %s, not text; hint: %s", path, name,
                hint ? hint : "training data are text in UTF-8, or token shards (*.bin)");
}

/* safetensors: 8 bytes of length, little-endian, below 2^40, then a JSON object. */
static bool is_safetensors(const char *bytes, size_t n) {
    return n > 10 && memcmp(bytes + 5, "\0\0\0{\"", 5) == 0;
}

/* Text in two bytes a character has a null in most of its bytes of one parity. 0: little-endian, 1: big, -1: none. */
static int utf16_order(const char *bytes, size_t n) {
    size_t pairs = (n < 4096 ? n : 4096) / 2, zeros[2] = {0, 0};
    for (size_t i = 0; i < 2 * pairs; i++) zeros[i % 2] += bytes[i] == 0;
    for (int order = 0; order < 2 && pairs > 1; order++)
        if (zeros[1 - order] > pairs / 2 && zeros[order] <= pairs / 50) return order;
    return -1;
}

bool file_kind_check(const char *path, const char *bytes, size_t n, int64_t offset, Error *err) {
    const size_t n_kinds = offset == 0 ? sizeof kinds / sizeof *kinds : 0;
    for (size_t i = 0; i < n_kinds; i++) {
        const size_t at = (size_t)kinds[i].at, length = (size_t)kinds[i].n;
        if (at + length <= n && memcmp(bytes + at, kinds[i].begin, length) == 0)
            return refuse(path, kinds[i].name, kinds[i].hint, err);
    }
    if (offset == 0 && is_safetensors(bytes, n))
        return refuse(path, "safetensors", "a model is given by --model", err);
    const char *zero = memchr(bytes, 0, n);
    if (!zero) return true;
    const int order = offset == 0 ? utf16_order(bytes, n) : -1;
    if (order >= 0)
        return refuse(path, "UTF-16 text without a mark",
                      order ? "iconv -f UTF-16BE -t UTF-8 FILE" : "iconv -f UTF-16LE -t UTF-8 FILE", err);
    return fail(err, EXIT_INPUT,
                "%s: byte %lld is null, which no text has: it looks like a binary file; hint: training data "
                "are text in UTF-8, or token shards (*.bin)",
                path, (long long)(offset + (zero - bytes)));
}
