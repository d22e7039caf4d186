/* Control groups of Linux: what a container, a job or a service may take. The limits of a group and of all above it hold. */
#pragma once

/* Calls visit(FOLDER, user) with this process's group in the hierarchy that is mounted at `root`, then with each above it, `root`
 * the last. controllers: as its line "ID:CONTROLLERS:PATH" of /proc/self/cgroup has them, "" in version 2. Without such a
 * line: with `root` alone. In a container the own group is the root. */
void cgroup_each(const char *root, const char *controllers, void (*visit)(const char *folder, void *user),
                 void *user);

/* The numbers that FOLDER/FILE begins with, two at most: how many there are. 0: there is no such file, or no limit ("max"). */
int cgroup_read(const char *folder, const char *file, long long numbers[2]);
