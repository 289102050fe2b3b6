// CUDA graphs for the driver without a GPU: nodes are kept, edges obeyed, and everything else about the order is random,
// so that a missing edge shows.
#define cuStreamIsCapturing never_capturing
#include "../runtime/fake_cuda.c"
#undef cuStreamIsCapturing
#include <unistd.h>

typedef struct {
  Function *f;
  unsigned gx, gy, gz, bx, by, bz, smem;
  void **params, **extra;
  void *kern, *ctx;
} KernelParams;
typedef struct {
  size_t sx, sy, sz, sl; int st; const void *sh; P sd; void *sa, *r0; size_t sp, sheight;
  size_t dx, dy, dz, dl; int dt; void *dh; P dd; void *da, *r1; size_t dp, dheight;
  size_t width, height, depth;
} Copy3D;
typedef struct { P dst; size_t pitch; unsigned value, size; size_t width, height; void *ctx; } SetParams;
enum { KERNEL, COPY, SET_, CHILD };
typedef struct Graph Graph;
typedef struct Node {
  int kind, cluster, index;
  KernelParams k;
  char *bytes;
  Copy3D copy;
  SetParams set;
  Graph *child;
} Node;
typedef struct { Node *from, *to; int early; } Edge;
struct Graph { Node *nodes[1024]; Edge edges[4096]; int count, edge_count; };
typedef struct { Graph *graph; Node *of[1024]; } Exec;
static long live_graphs, live_execs, updates, instantiations, inside, clashes;
static Graph *capture;
static Node *captured[8];
static int captured_count;
long fake_graph_count(int which) { long c[] = {live_graphs, live_execs, updates, instantiations, clashes}; return c[which]; }
// Two threads at an executable at once are a clash; none may be, in any test that asks.
#define ENTER if (__sync_fetch_and_add(&inside, 1)) __sync_fetch_and_add(&clashes, 1)
#define LEAVE __sync_fetch_and_sub(&inside, 1)
int fake_edges(Graph *g, int early) { int n = 0; for (int i = 0; i < g->edge_count; i++) n += g->edges[i].early == early; return n; }

static void keep_params(Node *n, const KernelParams *p) {
  int end = 0;
  for (int i = 0; i < p->f->count; i++) end += p->f->size[i];
  char *bytes = calloc(1, end + 1);
  for (int i = 0, at = 0; i < p->f->count; at += p->f->size[i++]) memcpy(bytes + at, p->params[i], p->f->size[i]);
  free(n->bytes);
  n->k = *p, n->bytes = bytes;
}
static Node *copy_of(const Node *n) {
  Node *m = malloc(sizeof *m);
  *m = *n;
  if (n->kind == KERNEL) {
    int end = 0;
    for (int i = 0; i < n->k.f->count; i++) end += n->k.f->size[i];
    m->bytes = memcpy(malloc(end + 1), n->bytes, end);
  }
  return m;
}
static Graph *clone(const Graph *g) {
  Graph *c = calloc(1, sizeof *c);
  c->count = g->count, c->edge_count = g->edge_count;
  for (int i = 0; i < g->count; i++) c->nodes[i] = copy_of(g->nodes[i]);
  for (int i = 0; i < g->edge_count; i++)
    c->edges[i] = (Edge){c->nodes[g->edges[i].from->index], c->nodes[g->edges[i].to->index], g->edges[i].early};
  return c;
}
static void drop(Graph *g) {
  for (int i = 0; i < g->count; i++) free(g->nodes[i]->bytes), free(g->nodes[i]);
  free(g);
}
R cuGraphCreate(Graph **g, unsigned f) { GUARD; *g = calloc(1, sizeof **g); live_graphs++; return 0; }
R cuGraphDestroy(Graph *g) { drop(g); live_graphs--; return 0; }
static Node *add(Graph *g, int kind, Node **before, size_t n) {
  Node *node = calloc(1, sizeof *node);
  node->kind = kind, node->cluster = 1, node->index = g->count;
  for (size_t i = 0; i < n; i++) g->edges[g->edge_count++] = (Edge){before[i], node, 0};
  return g->nodes[g->count++] = node;
}
R cuGraphAddKernelNode(Node **out, Graph *g, Node **before, size_t n, const KernelParams *p) {
  GUARD; if (!depth) return 201;
  if (p->smem > 49152 && (int)p->smem > p->f->dynamic_smem) return 1;
  keep_params(*out = add(g, KERNEL, before, n), p);
  return 0;
}
R cuGraphAddMemcpyNode(Node **out, Graph *g, Node **before, size_t n, const Copy3D *p, void *ctx) {
  GUARD; (*out = add(g, COPY, before, n))->copy = *p; return p->depth != 1;
}
R cuGraphAddMemsetNode(Node **out, Graph *g, Node **before, size_t n, const SetParams *p, void *ctx) {
  GUARD;
  if (p->height > 1 && p->pitch < p->width * p->size) return 1;
  (*out = add(g, SET_, before, n))->set = *p;
  return 0;
}
R cuGraphAddChildGraphNode(Node **out, Graph *g, Node **before, size_t n, Graph *child) {
  GUARD; (*out = add(g, CHILD, before, n))->child = clone(child); return 0;
}
typedef struct { unsigned char from_port, to_port, type, pad[5]; } EdgeData;
R cuGraphAddDependencies(Graph *g, Node **from, Node **to, const EdgeData *data, size_t n) {
  GUARD;
  for (size_t i = 0; i < n; i++) g->edges[g->edge_count++] = (Edge){from[i], to[i], data && data[i].type == 1};
  return 0;
}
R cuGraphKernelNodeSetAttribute(Node *n, int id, const unsigned *v) {
  if (id == 4) n->cluster = v[0] * v[1] * v[2];
  return 0;
}
R cuGraphInstantiate(Exec **e, Graph *g, uint64_t flags) {
  GUARD;
  *e = calloc(1, sizeof **e), (*e)->graph = clone(g), live_execs++, instantiations++;
  for (int i = 0; i < g->count; i++) (*e)->of[i] = (*e)->graph->nodes[i];
  return 0;
}
R cuGraphInstantiateWithFlags(Exec **e, Graph *g, uint64_t flags) { return cuGraphInstantiate(e, g, flags); }
R cuGraphExecDestroy(Exec *e) { ENTER; LEAVE; drop(e->graph); free(e); live_execs--; return 0; }
R cuGraphExecKernelNodeSetParams(Exec *e, Node *n, const KernelParams *p) {
  GUARD; ENTER; updates++; usleep(20); keep_params(e->of[n->index], p); LEAVE; return 0;
}
R cuGraphKernelNodeSetParams(Node *n, const KernelParams *p) { keep_params(n, p); return 0; }
R cuGraphExecMemcpyNodeSetParams(Exec *e, Node *n, const Copy3D *p, void *ctx) {
  GUARD; if (p->height > 1 || n->copy.height > 1) return 1;
  updates++; e->of[n->index]->copy = *p; return 0;
}
R cuGraphExecMemsetNodeSetParams(Exec *e, Node *n, const SetParams *p, void *ctx) {
  GUARD; if (p->height > 1 || n->set.height > 1) return 1;
  updates++; e->of[n->index]->set = *p; return 0;
}
R cuGraphMemcpyNodeSetParams(Node *n, const Copy3D *p) { n->copy = *p; return 0; }
R cuGraphMemsetNodeSetParams(Node *n, const SetParams *p) { n->set = *p; return 0; }

static R run_graph(Graph *g, void *stream);
static R run_node(Node *n, void *stream) {
  if (n->kind == CHILD) return run_graph(n->child, stream);
  if (n->kind == KERNEL) {
    void *params[MAX_PARAMS];
    for (int i = 0, at = 0; i < n->k.f->count; at += n->k.f->size[i++]) params[i] = n->bytes + at;
    unsigned d[] = {n->k.gx, n->k.gy, n->k.gz, n->k.bx, n->k.by, n->k.bz};
    return run(n->k.f, d, n->k.smem, stream, params, n->cluster, 0);
  }
  if (n->kind == COPY) {
    const char *from = n->copy.st == 1 ? n->copy.sh : (void *)n->copy.sd;
    char *to = n->copy.dt == 1 ? n->copy.dh : (void *)n->copy.dd;
    for (size_t i = 0; i < n->copy.height; i++)
      memmove(to + i * n->copy.dp, from + i * n->copy.sp, n->copy.width);
    return 0;
  }
  for (size_t j = 0; j < n->set.height; j++)
    for (size_t i = 0; i < n->set.width; i++)
      memcpy((char *)n->set.dst + j * n->set.pitch + i * n->set.size, &n->set.value, n->set.size);
  return 0;
}
static R run_graph(Graph *g, void *stream) {
  char done[1024] = {0};
  for (int left = g->count; left; left--) {
    int ready[1024], n = 0;
    for (int i = 0; i < g->count; i++) {
      int ok = !done[i];
      for (int e = 0; ok && e < g->edge_count; e++)
        if (g->edges[e].to == g->nodes[i] && !done[g->edges[e].from->index]) ok = 0;
      if (ok) ready[n++] = i;
    }
    if (!n) return 1;
    int pick = ready[rand() % n];
    done[pick] = 1;
    R r = run_node(g->nodes[pick], stream);
    if (r) return r;
  }
  return 0;
}
R cuGraphLaunch(Exec *e, void *stream) {
  GUARD;
  if (stream == (void *)0xC0DE) return 900;
  ENTER;
  usleep(20);
  R r = run_graph(e->graph, stream);
  LEAVE;
  return r;
}
// Stream 0xC0DE is captured from the first question about it until fake_end_capture, which runs what was captured.
R cuStreamIsCapturing(void *s, int *status) { *status = s == (void *)0xC0DE; return 0; }
R cuStreamGetCaptureInfo(void *s, int *status, uint64_t *id, Graph **g, const Node ***deps, const EdgeData **edges,
                         size_t *n) {
  if (!capture) capture = calloc(1, sizeof *capture), captured_count = 0;
  *status = 1;
  if (id) *id = 1;
  if (g) *g = capture;
  if (deps) *deps = (const Node **)captured;
  static EdgeData plain[8];
  if (edges) *edges = plain;
  if (n) *n = captured_count;
  return 0;
}
R cuStreamUpdateCaptureDependencies(void *s, Node **deps, const EdgeData *data, size_t n, unsigned flags) {
  if (flags != 1) return 1;
  for (size_t i = 0; i < n; i++) captured[i] = deps[i];
  captured_count = n;
  return 0;
}
int fake_end_capture(void) { depth++; R r = run_graph(capture, 0); depth--, capture = 0; return r; }
