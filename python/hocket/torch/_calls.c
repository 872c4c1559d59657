// SPDX-License-Identifier: Apache-2.0
// Calls of torch.distributed on plain memory; the class Quick is for _quick.py. Python does what a call here does not
// know. Only Python's stable ABI is used, and of PyTorch the table of DLPack, so the compiled module fits all their
// versions.
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#include "hocket.h"
#include "nccl.h"

// DLPack: how PyTorch describes a tensor to C. Its numbers and layouts are those of version 1.
typedef struct {
  void *data;
  int32_t device, device_index, dimensions;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} calls_tensor;

typedef struct {
  uint32_t major, minor;
  void *older, *allocate, *export, *import;
  int (*describe)(void *tensor, calls_tensor *out); // NULL: there is none
} calls_dlpack;

enum { CALLS_CPU = 1, CALLS_INT = 0, CALLS_UINT = 1, CALLS_FLOAT = 2, CALLS_BFLOAT = 4 };

static const struct {
  uint8_t code, bits;
  ncclDataType_t type;
} calls_types[] = {
    {CALLS_FLOAT, 32, ncclFloat32}, {CALLS_BFLOAT, 16, ncclBfloat16}, {CALLS_FLOAT, 64, ncclFloat64},
    {CALLS_FLOAT, 16, ncclFloat16}, {CALLS_INT, 64, ncclInt64},       {CALLS_INT, 32, ncclInt32},
    {CALLS_INT, 8, ncclInt8},       {CALLS_UINT, 8, ncclUint8},
};

// The library's functions come as addresses: linked by name, they could be those of NCCL, which PyTorch loads, too.
typedef struct {
  __typeof__(ncclAllReduce) *all_reduce;
  __typeof__(ncclReduce) *reduce;
  __typeof__(ncclBroadcast) *broadcast;
  __typeof__(ncclAllGather) *all_gather;
  __typeof__(ncclReduceScatter) *reduce_scatter;
  __typeof__(hocketStreamPosition) *position;
  __typeof__(hocketStreamWait) *wait;
} calls_library;

// The numbers of _quick.py.
typedef enum {
  CALLS_ALL_REDUCE,
  CALLS_REDUCE,
  CALLS_BROADCAST,
  CALLS_ALL_GATHER,
  CALLS_REDUCE_SCATTER,
  CALLS_BARRIER,
} calls_kind;

typedef struct {
  PyObject base;
  PyObject *batch, *error; // the engine's, in Python, as all before comm
  char observed, timing;
  unsigned long long stream; // of asynchronous calls; 0: there is none yet
  long long sequence;
  double timeout, since, limit;
  // What prepare() was given.
  ncclComm_t comm;
  long ranks;
  calls_library library;
  const calls_dlpack *dlpack;
  PyObject *acquire, *release; // of the engine's lock
  PyObject *tools;             // keeps the objects below
  PyObject *tensor, *parameter, *is_neg, *no_limit, *profiler;
  PyObject *profiling, *async_op, *limit_name, *op_name, *root_name;
  const char *operators; // by PyTorch's number; those that the library has not are ncclNumOps
  Py_ssize_t operator_count;
} calls_engine;

static double calls_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t); // the clock of Python's time.monotonic()
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Takes the reference. An exception is no fault here: Python's operation finds and reports it.
static bool calls_is(PyObject *value, PyObject *wanted) {
  if (!value) PyErr_Clear();
  Py_XDECREF(value);
  return value == wanted;
}

// A tensor whose memory holds its values one after the other. false: Python looks at it.
static bool calls_read(calls_engine *e, PyObject *t, calls_tensor *out, size_t *count, ncclDataType_t *type) {
  PyObject *kind = (PyObject *)Py_TYPE(t);
  if (kind != e->tensor && kind != e->parameter) return false;
  if (e->dlpack->describe(t, out)) {
    PyErr_Clear();
    return false;
  }
  if (out->device != CALLS_CPU || out->lanes != 1 || !out->data || out->offset) return false;
  size_t k = 0, types = sizeof calls_types / sizeof *calls_types;
  while (k < types && (calls_types[k].code != out->code || calls_types[k].bits != out->bits)) k++;
  if (k == types) return false;
  int64_t step = 1;
  for (int d = out->dimensions - 1; d >= 0; step *= out->shape[d--])
    if (out->shape[d] != 1 && out->strides[d] != step) return false;
  *count = (size_t)step, *type = calls_types[k].type;
  return step > 0 && calls_is(PyObject_CallFunctionObjArgs(e->is_neg, t, NULL), Py_False);
}

// false: Python looks at the options.
static bool calls_when(calls_engine *e, PyObject *options, bool *later) {
  PyObject *async_op = PyObject_GetAttr(options, e->async_op);
  *later = async_op == Py_True;
  if (!calls_is(async_op, *later ? Py_True : Py_False)) return false;
  PyObject *limit = PyObject_GetAttr(options, e->limit_name);
  PyObject *same = limit ? PyObject_RichCompare(limit, e->no_limit, Py_EQ) : NULL;
  Py_XDECREF(limit);
  return calls_is(same, Py_True);
}

static bool calls_operator(calls_engine *e, PyObject *options, ncclRedOp_t *out) {
  PyObject *op = PyObject_GetAttr(options, e->op_name);
  Py_ssize_t number = op ? PyObject_Hash(op) : -1; // the operator's number, as _quick.py has checked
  Py_XDECREF(op);
  if (number == -1) PyErr_Clear();
  if (number < 0 || number >= e->operator_count || e->operators[number] == (char)ncclNumOps) return false;
  *out = (ncclRedOp_t)e->operators[number];
  return true;
}

static bool calls_root(calls_engine *e, PyObject *options, int *out) {
  PyObject *root = PyObject_GetAttr(options, e->root_name);
  long number = root ? PyLong_AsLong(root) : -1;
  Py_XDECREF(root);
  if (number == -1) PyErr_Clear();
  *out = (int)number;
  return number >= 0 && number < e->ranks;
}

static ncclResult_t calls_call(calls_engine *e, calls_kind kind, const void *in, void *out, size_t n,
                               ncclDataType_t type, ncclRedOp_t op, int root, cudaStream_t stream) {
  switch (kind) {
    case CALLS_REDUCE: return e->library.reduce(in, out, n, type, op, root, e->comm, stream);
    case CALLS_BROADCAST: return e->library.broadcast(in, out, n, type, root, e->comm, stream);
    case CALLS_ALL_GATHER: return e->library.all_gather(in, out, n, type, e->comm, stream);
    case CALLS_REDUCE_SCATTER: return e->library.reduce_scatter(in, out, n, type, op, e->comm, stream);
    default: return e->library.all_reduce(in, out, n, type, op, e->comm, stream);
  }
}

// With the engine's lock: calls, or leaves it to Python, which raises an error, collects a batch, records, or makes the
// stream. `input` and `output` are the tensors of an asynchronous call, or NULL.
static PyObject *calls_locked(calls_engine *e, calls_kind kind, const void *in, void *out, size_t n,
                              ncclDataType_t type, ncclRedOp_t op, int root, PyObject *input, PyObject *output) {
  if (e->error != Py_None || e->batch != Py_None || e->observed || (input && (!e->stream || e->timing)))
    return Py_NewRef(Py_False);
  cudaStream_t stream = input ? (cudaStream_t)(uintptr_t)e->stream : NULL;
  uint64_t place = 0;
  e->sequence++;
  if (!input) e->limit = e->timeout, e->since = calls_now();
  ncclResult_t code;
  Py_BEGIN_ALLOW_THREADS;
  code = calls_call(e, kind, in, out, n, type, op, root, stream);
  if (input && !code) code = e->library.position((hocketStream_t)stream, &place);
  Py_END_ALLOW_THREADS;
  if (!input) e->since = 0;
  if (code) return PyObject_CallMethod((PyObject *)e, "_refused", "i", code);
  if (!input) return Py_NewRef(Py_None);
  return PyObject_CallMethod((PyObject *)e, "_began", "OOK", input, output, (unsigned long long)place);
}

// The tensor of a list of one, or what is no list.
static PyObject *calls_only(PyObject *given) {
  return PyList_Check(given) && PyList_Size(given) == 1 ? PyList_GetItem(given, 0) : given;
}

// quick(kind, output, input, options): what the operation returns. False: nothing is done, and the operation in Python
// does it.
static PyObject *calls_quick(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  calls_engine *e = (calls_engine *)self;
  calls_tensor from, to;
  uint64_t mark = 0; // the memory of a barrier
  size_t n = 1, n_out = 1;
  ncclDataType_t type = ncclUint64, type_out = ncclUint64;
  ncclRedOp_t op = ncclMin;
  int root = 0;
  bool later = false;
  if (!e->dlpack || count != 4 || PyDict_GetItem(e->profiler, e->profiling) != Py_False ||
      !calls_when(e, args[3], &later))
    return Py_NewRef(Py_False);
  calls_kind kind = (calls_kind)PyLong_AsLong(args[0]);
  PyObject *out = calls_only(args[1]), *in = calls_only(args[2]);
  from.data = to.data = &mark;
  if (kind == CALLS_BARRIER && later) return Py_NewRef(Py_False);
  if (kind != CALLS_BARRIER) {
    if (!calls_read(e, in, &from, &n, &type)) return Py_NewRef(Py_False);
    to = from, n_out = n, type_out = type;
    if (out != in && !calls_read(e, out, &to, &n_out, &type_out)) return Py_NewRef(Py_False);
    bool reduces = kind != CALLS_BROADCAST && kind != CALLS_ALL_GATHER;
    bool rooted = kind == CALLS_REDUCE || kind == CALLS_BROADCAST;
    if ((reduces && !calls_operator(e, args[3], &op)) || (rooted && !calls_root(e, args[3], &root)))
      return Py_NewRef(Py_False);
  }
  size_t ranks = (size_t)e->ranks, each = kind == CALLS_REDUCE_SCATTER ? n_out : n;
  if (type != type_out || n != each * (kind == CALLS_REDUCE_SCATTER ? ranks : 1) ||
      n_out != each * (kind == CALLS_ALL_GATHER ? ranks : 1))
    return Py_NewRef(Py_False);

  PyObject *held = PyObject_CallNoArgs(e->acquire);
  if (!held) return NULL;
  Py_DECREF(held);
  Py_INCREF(in), Py_INCREF(out); // another thread may change the lists meanwhile
  PyObject *result = calls_locked(e, kind, from.data, to.data, each, type, op, root, later ? in : NULL, out);
  PyObject *kind_of_error, *error, *trace;
  PyErr_Fetch(&kind_of_error, &error, &trace);
  Py_DECREF(in), Py_DECREF(out);
  Py_XDECREF(PyObject_CallNoArgs(e->release));
  PyErr_Restore(kind_of_error, error, trace);
  return result;
}

// until(position): waits until the stream's items up to it are complete. The result is an ncclResult_t.
static PyObject *calls_until(PyObject *self, PyObject *position) {
  calls_engine *e = (calls_engine *)self;
  unsigned long long place = PyLong_AsUnsignedLongLong(position);
  if (PyErr_Occurred()) return NULL;
  ncclResult_t code;
  Py_BEGIN_ALLOW_THREADS;
  code = e->library.wait((hocketStream_t)(uintptr_t)e->stream, place, -1);
  Py_END_ALLOW_THREADS;
  return PyLong_FromLong((long)code);
}

// prepare(communicator, ranks, the functions' addresses in bytes, DLPack's table, acquire, release, tools)
static PyObject *calls_prepare(PyObject *self, PyObject *args) {
  calls_engine *e = (calls_engine *)self;
  const char *functions;
  Py_ssize_t bytes;
  unsigned long long comm;
  PyObject *table, *acquire, *release, *tools;
  if (!PyArg_ParseTuple(args, "Kly#OOOO", &comm, &e->ranks, &functions, &bytes, &table, &acquire, &release, &tools))
    return NULL;
  e->acquire = Py_NewRef(acquire), e->release = Py_NewRef(release), e->tools = Py_NewRef(tools);
  if (!PyArg_ParseTuple(e->tools, "OOOOOUUUUUy#", &e->tensor, &e->parameter, &e->is_neg, &e->no_limit, &e->profiler,
                        &e->profiling, &e->async_op, &e->limit_name, &e->op_name, &e->root_name, &e->operators,
                        &e->operator_count))
    return NULL;
  const calls_dlpack *dlpack = PyCapsule_GetPointer(table, "dlpack_exchange_api");
  if (!dlpack) return NULL;
  e->comm = (ncclComm_t)(uintptr_t)comm;
  if (bytes != sizeof e->library) return PyErr_Format(PyExc_SystemError, "the addresses are not those of the library");
  memcpy(&e->library, functions, sizeof e->library);
  if (dlpack->major == 1 && dlpack->describe) e->dlpack = dlpack;
  return Py_NewRef(Py_None);
}

static int calls_traverse(PyObject *self, visitproc visit, void *arg) {
  calls_engine *e = (calls_engine *)self;
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(e->batch);
  Py_VISIT(e->error);
  return 0;
}

static int calls_clear(PyObject *self) {
  calls_engine *e = (calls_engine *)self;
  Py_CLEAR(e->batch);
  Py_CLEAR(e->error);
  return 0;
}

static void calls_free(PyObject *self) {
  calls_engine *e = (calls_engine *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  calls_clear(self);
  Py_CLEAR(e->acquire);
  Py_CLEAR(e->release);
  Py_CLEAR(e->tools);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

#define CALLS_MEMBER(python, name, kind)                                                                               \
  { python, kind, offsetof(calls_engine, name), 0, NULL }
static PyMemberDef calls_members[] = {
    CALLS_MEMBER("_batch", batch, T_OBJECT),     CALLS_MEMBER("_error", error, T_OBJECT),
    CALLS_MEMBER("observed", observed, T_BOOL),  CALLS_MEMBER("sequence", sequence, T_LONGLONG),
    CALLS_MEMBER("timeout", timeout, T_DOUBLE),  CALLS_MEMBER("since", since, T_DOUBLE),
    CALLS_MEMBER("limit", limit, T_DOUBLE),      CALLS_MEMBER("timing", timing, T_BOOL),
    CALLS_MEMBER("stream", stream, T_ULONGLONG), {0},
};

static PyMethodDef calls_methods[] = {
    {"quick", (PyCFunction)(void (*)(void))calls_quick, METH_FASTCALL, NULL},
    {"until", calls_until, METH_O, NULL},
    {"prepare", calls_prepare, METH_VARARGS, NULL},
    {0},
};

static PyType_Slot calls_slots[] = {
    {Py_tp_members, calls_members},     {Py_tp_methods, calls_methods},      {Py_tp_traverse, (void *)calls_traverse},
    {Py_tp_clear, (void *)calls_clear}, {Py_tp_dealloc, (void *)calls_free}, {0},
};

static PyType_Spec calls_type = {
    .name = "hocket.torch._calls.Quick",
    .basicsize = sizeof(calls_engine),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = calls_slots,
};

static int calls_fill(PyObject *module) {
  PyObject *type = PyType_FromSpec(&calls_type);
  return type ? PyModule_AddObject(module, "Quick", type) : -1;
}

static PyModuleDef_Slot calls_module_slots[] = {{Py_mod_exec, (void *)calls_fill}, {0}};
static PyModuleDef calls_module = {PyModuleDef_HEAD_INIT, .m_name = "hocket.torch._calls",
                                   .m_slots = calls_module_slots};

PyMODINIT_FUNC PyInit__calls(void);
PyMODINIT_FUNC PyInit__calls(void) { return PyModuleDef_Init(&calls_module); }
