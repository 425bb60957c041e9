/* C program that loads libcuda.so.1 by dlopen. Its threads call the library when they end, from
 * two kinds of destructors. Destructors of thread_local objects (__cxa_thread_atexit_impl) run
 * first, and destructors of thread-specific data run later. Each is registered before its thread
 * first calls the library, so it runs after the library's own destructors for the thread. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long address;

extern int __cxa_thread_atexit_impl(void (*destructor)(void *), void *object, void *library);
extern void *__dso_handle;

static int (*init)(unsigned);
static int (*retain)(void **, int);
static int (*set_current)(void *);
static int (*push)(void *);
static int (*pop)(void **);
static int (*allocate)(address *, size_t);
static int (*release)(address);
static int (*stream_create)(void **, unsigned);
static int (*stream_destroy)(void *);
static int (*memory)(size_t *, size_t *);

#define OK(call)                                                            \
  do {                                                                      \
    int code_ = (call);                                                     \
    if (code_ != 0) {                                                       \
      fprintf(stderr, "line %d: %s returned %d\n", __LINE__, #call, code_); \
      exit(1);                                                              \
    }                                                                       \
  } while (0)

static void *context;
static pthread_key_t at_end;

/* Data for the calls that a thread makes when it ends. */
struct left {
  address block;
  void *stream;
  int is_pushed;
};

static void let_go(void *object) {
  struct left *left = object;
  void *popped;
  if (left->is_pushed) OK(push(context));
  /* Without a pushed context, the thread's current context is used. */
  OK(release(left->block));
  OK(stream_destroy(left->stream));
  if (left->is_pushed) OK(pop(&popped));
  free(left);
}

static void leave(struct left *left, int is_pushed) {
  left->is_pushed = is_pushed;
  OK(allocate(&left->block, 1 << 20));
  OK(stream_create(&left->stream, 1));
}

static void *work(void *is_pushed) {
  struct left *in_object = malloc(sizeof *in_object), *in_key = malloc(sizeof *in_key);
  OK(__cxa_thread_atexit_impl(let_go, in_object, &__dso_handle));
  OK(pthread_setspecific(at_end, in_key));
  OK(set_current(context));
  leave(in_object, is_pushed != NULL);
  leave(in_key, is_pushed != NULL);
  return NULL;
}

#define FIND(name, symbol) *(void **)&name = dlsym(library, symbol)

int main(void) {
  size_t before, after, total;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  FIND(init, "cuInit");
  FIND(retain, "cuDevicePrimaryCtxRetain");
  FIND(set_current, "cuCtxSetCurrent");
  FIND(push, "cuCtxPushCurrent_v2");
  FIND(pop, "cuCtxPopCurrent_v2");
  FIND(allocate, "cuMemAlloc_v2");
  FIND(release, "cuMemFree_v2");
  FIND(stream_create, "cuStreamCreate");
  FIND(stream_destroy, "cuStreamDestroy_v2");
  FIND(memory, "cuMemGetInfo_v2");
  OK(pthread_key_create(&at_end, let_go));
  OK(init(0));
  OK(retain(&context, 0));
  OK(set_current(context));
  OK(memory(&before, &total));
  for (int i = 0; i < 200; i++) {
    pthread_t thread;
    OK(pthread_create(&thread, NULL, work, i % 2 ? context : NULL));
    OK(pthread_join(thread, NULL));
  }
  OK(memory(&after, &total));
  if (before != after) {
    fprintf(stderr, "%zu bytes did not come back\n", before - after);
    return 1;
  }
  puts("the end of the threads");
  fflush(stdout);
  /* Also calls the library when the program ends, with data of the main thread. */
  struct left *last = malloc(sizeof *last);
  OK(__cxa_thread_atexit_impl(let_go, last, &__dso_handle));
  leave(last, 1);
  return 0;
}
