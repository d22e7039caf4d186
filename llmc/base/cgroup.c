#include "cgroup.h"
#include <stdio.h>
#include <string.h>

enum { OWN = 512 };

static void read_own(const char *controllers, char own[OWN]) {
    char line[OWN], key[64], *at = NULL;
    FILE *file = fopen("/proc/self/cgroup", "r");
    own[0] = 0;
    if (!file) return;
    snprintf(key, sizeof key, ":%s:", controllers);
    while (!at && fgets(line, sizeof line, file)) at = strstr(line, key);
    fclose(file);
    if (!at) return;
    snprintf(own, OWN, "%s", at + strlen(key));
    own[strcspn(own, "\n")] = 0;
}

void cgroup_each(const char *root, const char *controllers, void (*visit)(const char *folder, void *user),
                 void *user) {
    char own[OWN], path[64 + OWN], *end;
    read_own(controllers, own);
    snprintf(path, sizeof path, "%s%s", root, own);
    do {
        visit(path, user);
        end = strrchr(path + strlen(root), '/');
        if (end) *end = 0;
    } while (end);
}

int cgroup_read(const char *folder, const char *file, long long numbers[2]) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *opened = fopen(path, "r");
    if (!opened) return 0;
    const int n = fscanf(opened, "%lld %lld", &numbers[0], &numbers[1]);
    fclose(opened);
    return n > 0 ? n : 0;
}
