/* Where NCCL is: $NCCL_LIBRARY; else where the loader looks; else in the wheel that pip installs with PyTorch, which is
 * beside the python3 of the PATH. */
#include "nccl.h"
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "transport.h"

#define LIBRARY "libnccl.so.2"
static Nccl functions;
static char description[PATH_MAX + 64];

/* ---- finding ---- */

/* The library of the wheel in one of the folders of packages below `prefix`; NULL where there is none. */
static void *open_wheel(const char *prefix) {
    static const char *const places[] = {"site-packages", "dist-packages"};
    void *library = NULL;
    for (int i = 0; i < 2 && !library; i++) {
        char pattern[PATH_MAX];
        glob_t found;
        snprintf(pattern, sizeof pattern, "%s/lib/python3*/%s/nvidia/nccl/lib/" LIBRARY, prefix, places[i]);
        if (glob(pattern, 0, NULL, &found) != 0) continue;
        for (size_t k = 0; k < found.gl_pathc && !library; k++)
            library = dlopen(found.gl_pathv[k], RTLD_NOW | RTLD_LOCAL);
        globfree(&found);
    }
    return library;
}

/* PATH's folders in turn: that of python3 is PREFIX/bin; of a virtual environment, too. Then pip install --user. */
static void *open_any_wheel(void) {
    char folders[4 * PATH_MAX], prefix[PATH_MAX], *rest = NULL;
    const char *path = getenv("PATH"), *home = getenv("HOME");
    void *library = NULL;
    snprintf(folders, sizeof folders, "%s", path ? path : "");
    for (char *at = strtok_r(folders, ":", &rest); at && !library; at = strtok_r(NULL, ":", &rest)) {
        const size_t n = strlen(at);
        if (n <= 4 || strcmp(at + n - 4, "/bin") != 0) continue;
        snprintf(prefix, sizeof prefix, "%.*s", (int)(n - 4), at);
        library = open_wheel(prefix);
    }
    if (library || !home) return library;
    snprintf(prefix, sizeof prefix, "%s/.local", home);
    return open_wheel(prefix);
}

static void *find_library(Error *err) {
    const char *named = getenv("NCCL_LIBRARY");
    void *library = dlopen(named && *named ? named : LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library) return library;
    if (named && *named) {
        const char *why = dlerror();
        return fail(err, EXIT_RUN, "NCCL_LIBRARY: %s", why), NULL;
    }
    library = open_any_wheel();
    if (!library)
        fail(err, EXIT_RUN,
             "several GPUs need NVIDIA's NCCL: no " LIBRARY " where the system looks, nor in python3's "
             "packages; hint: pip install nvidia-nccl-cu12, or NCCL_LIBRARY=/path/to/" LIBRARY);
    return library;
}

/* ---- opening ---- */

static const char *path_of(void *library) {
    struct link_map *map;
    return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && *map->l_name ? map->l_name : LIBRARY;
}

/* All functions, or the name of the first that is not there. */
static const char *missing_function(void *library) {
    static const struct {
        const char *name;
        size_t offset;
    } all[] = {
#define ROW(Type, name, arguments) {#name, offsetof(Nccl, name)},
        EACH_NCCL_FUNCTION(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *symbol = dlsym(library, all[i].name);
        if (!symbol) return all[i].name;
        memcpy((char *)&functions + all[i].offset, &symbol, sizeof symbol);
    }
    return NULL;
}

static bool check_library(void *library, Error *err) {
    int v = 0;
    int (*version)(int *);
    const char *path = path_of(library);
    void *symbol = dlsym(library, "ncclGetVersion");
    memcpy(&version, &symbol, sizeof symbol);
    if (!symbol || version(&v) != NCCL_SUCCESS)
        return fail(err, EXIT_RUN,
                    "%s is not NCCL: it has no ncclGetVersion; hint: NCCL_LIBRARY=/path/to/" LIBRARY, path);
    const char *missing = missing_function(library);
    snprintf(description, sizeof description, "NCCL %d.%d.%d, %s", v / 10000, v / 100 % 100, v % 100, path);
    if (v >= NCCL_OLDEST && !missing) return true;
    return fail(err, EXIT_RUN,
                "%s: expected %d.%d or later%s%s; hint: pip install nvidia-nccl-cu12, and "
                "NCCL_LIBRARY=/path/to/" LIBRARY,
                description, NCCL_OLDEST / 10000, NCCL_OLDEST / 100 % 100, missing ? ", it has no " : "",
                missing ? missing : "");
}

const Nccl *nccl_open(Error *err) {
    static bool is_open;
    /* The user's own settings stay. NVLink's multicast: a program that is killed in it can leave the cards of the host
     * unusable. Two communicators at once cannot wait for each other where launches keep the order of the calls. Calls in a
     * graph and outside are in the order of one stream, so NCCL need not order them once more: a step of d12, 16 x 1024
     * tokens a GPU, takes 28.1 ms on two H200 for 28.5. */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0);
    if (is_open) return &functions;
    void *library = find_library(err);
    is_open = library && check_library(library, err);
    return is_open ? &functions : NULL;
}

const char *comm_nccl_description(void) {
    return description;
}
