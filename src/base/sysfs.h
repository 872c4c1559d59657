/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of /sys and /proc below a root: "" is this machine, a folder is a recorded or invented one. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum { HK_SYSFS_PATH = 4096 };

/* The beginning of the file without white space at its end; false, and "", if it cannot be read. */
bool hk_sysfs_text(const char *root, char *out, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The number that the file begins with, decimal or 0x. */
bool hk_sysfs_number(const char *root, long long *out, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool hk_sysfs_has(const char *root, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Names in a folder, without those that begin with a dot; numbers in names sort by value. NULL-ended, one block: free()
 * it. NULL if there is no such folder. */
char **hk_sysfs_list(const char *root, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The path without links, below the root; out needs HK_SYSFS_PATH bytes. */
bool hk_sysfs_real(const char *root, char *out, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Sorts devices, which are entries of `folder`, by the addresses of their PCI functions. Those without one come last,
 * and equal ones stay as they are. */
void hk_sysfs_sort_by_pci(const char *root, const char *folder, char **devices);
/* The last component of a link's target; false if it is no link. */
bool hk_sysfs_link(const char *root, char *out, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
