/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of communication patterns: which ranks communicate. Nothing is built or allocated here. */
#pragma once

/* The rank `by` positions after `rank` (before it, if negative) on a circle of n; |by| <= n. */
static inline int hk_shift(int rank, int by, int n) {
  int r = (rank + by) % n;
  return r < 0 ? r + n : r;
}

static inline int hk_log2_floor(unsigned x) { return 31 - __builtin_clz(x); }
static inline int hk_log2_ceil(unsigned x) { return x > 1 ? hk_log2_floor(x - 1) + 1 : 0; }
static inline int hk_is_power_of_2(int n) { return (n & (n - 1)) == 0; }

/* ---- Hypercubes of any number of ranks (Thakur, Rabenseifner, Gropp 2005, section 4.5) ----
 * p = the largest power of two <= n ranks form the cube. The n - p other ranks are the even ones among the first 2 (n -
 * p); the rank after each of them does its work. */
typedef struct hk_cube {
  int n, p, extra;
} hk_cube;
static inline hk_cube hk_cube_of(int n) {
  int p = 1 << hk_log2_floor((unsigned)n);
  return (hk_cube){.n = n, .p = p, .extra = n - p};
}
/* The corner of a rank, -1 outside the cube. */
static inline int hk_cube_corner(const hk_cube *c, int rank) {
  if (rank >= 2 * c->extra) return rank - c->extra;
  return rank % 2 ? rank / 2 : -1;
}
static inline int hk_cube_rank(const hk_cube *c, int corner) {
  return corner < c->extra ? 2 * corner + 1 : corner + c->extra;
}
/* The rank outside the cube that a corner's rank works for, -1 if there is none. */
static inline int hk_cube_client(const hk_cube *c, int corner) { return corner < c->extra ? 2 * corner : -1; }

/* ---- Binomial trees ----
 * v counts ranks from the root. The parent of v is v without its lowest one bit; child k of v is v + 2^k. The subtree
 * of a child is a range: [v + 2^k, v + 2^(k+1)), cut at n. */
static inline int hk_binomial_parent(int v) { return v & (v - 1); }
static inline int hk_binomial_children(int v, int n) {
  int k = 0;
  while ((v == 0 || !(v >> k & 1)) && v + (1 << k) < n) k++;
  return k;
}
static inline int hk_binomial_subtree(int v, int k, int n) {
  int begin = v + (1 << k), end = v + (2 << k);
  return (end < n ? end : n) - begin;
}

/* ---- Two trees (Sanders, Speck, Traeff 2009: "Two-tree algorithms for full bandwidth broadcast, reduction and scan")
 * ----
 * All ranks but the root form two binary trees. Every rank has children in at most one of them. Each tree carries half
 * of the message, so no rank sends more than the message once in each direction. The root is above both.
 *
 * Tree 0 numbers the p = n - 1 ranks after the root 1..p and is in order: the height of label i is its number of
 * trailing zero bits, so odd labels are leaves. Tree 1 is its mirror image if p is even, and the tree itself rotated by
 * one if p is odd: either way an even label becomes an odd one. */
typedef struct hk_tree_place {
  int up;      /* the parent */
  int down[2]; /* the children */
  int ndown;
} hk_tree_place;

static inline int hk_two_tree_label(int tree, int i, int p) {
  if (tree == 0) return i;
  if (p % 2 == 0) return p + 1 - i;
  return i == 1 ? p : i - 1;
}
/* The inverse. */
static inline int hk_two_tree_number(int tree, int label, int p) {
  if (tree == 0) return label;
  if (p % 2 == 0) return p + 1 - label;
  return label == p ? 1 : label + 1;
}
static inline int hk_two_tree_rank(int tree, int label, int root, int n) {
  return hk_shift(root, hk_two_tree_number(tree, label, n - 1), n);
}
/* The rank on top of a tree, directly below the root. */
static inline int hk_two_tree_top(int tree, int root, int n) {
  return hk_two_tree_rank(tree, 1 << hk_log2_floor((unsigned)(n - 1)), root, n);
}
/* rank != root */
static inline hk_tree_place hk_two_tree_place(int tree, int rank, int root, int n) {
  int p = n - 1, label = hk_two_tree_label(tree, hk_shift(rank, -root, n), p);
  int low = label & -label;
  hk_tree_place place = {.up = root};
  if (low > 1) place.down[place.ndown++] = hk_two_tree_rank(tree, label - low / 2, root, n);
  /* There are low - 1 labels to the right of this one, or as many as exist: their middle is at a distance of the
   * largest power of two. */
  int right = p - label < low - 1 ? p - label : low - 1;
  if (right > 0)
    place.down[place.ndown++] = hk_two_tree_rank(tree, label + (1 << hk_log2_floor((unsigned)right)), root, n);
  if (rank == hk_two_tree_top(tree, root, n)) return place;
  int up = (label ^ low) | low << 1;
  if (up > p) /* this label does not exist: `label` is the middle of its left neighbour's right side */
    up = label ^ low;
  place.up = hk_two_tree_rank(tree, up, root, n);
  return place;
}
