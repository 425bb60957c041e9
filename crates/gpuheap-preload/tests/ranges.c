/* A program that opens ranges as NVTX does: it has the table of NVTX's functions, and loads the
 * library that NVTX_INJECTION64_PATH names. Its layouts are the layouts of NVTX 3. With an
 * argument, it opens many ranges and does not end them. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <wchar.h>

#include "driver.h"

typedef void (*function)(void);
typedef struct {
  uint16_t version, size;
  uint32_t category;
  int32_t color_kind;
  uint32_t color;
  int32_t payload_kind, reserved;
  uint64_t payload;
  int32_t message_kind;
  const void *message;
} attributes;
typedef struct {
  size_t size;
  int (*functions)(int module, function ***table, unsigned *count);
} callbacks;

enum { CORE = 1, CORE2 = 5, COUNT = 15 };
static function core[COUNT + 1], core2[COUNT + 1];
static function *core_table[COUNT + 2], *core2_table[COUNT + 2];

static int functions_of(int module, function ***table, unsigned *count) {
  if (module != CORE && module != CORE2) return 0;
  *table = module == CORE ? core_table : core2_table;
  *count = COUNT;
  return 1;
}

static const void *table_of(uint32_t id) {
  static const callbacks all = {sizeof all, functions_of};
  return id == 1 ? &all : NULL;
}

/* Calls functions of NVTX by their number in the table. */
static int push(const char *name) { return ((int (*)(const char *))core[9])(name); }
static int push_wide(const wchar_t *name) { return ((int (*)(const wchar_t *))core[10])(name); }
static int pop(void) { return ((int (*)(void))core[11])(); }
static uint64_t start(const char *name) { return ((uint64_t (*)(const char *))core[5])(name); }
static void end(uint64_t id) { ((void (*)(uint64_t))core[7])(id); }

static ptr allocate(size_t bytes) {
  ptr made;
  CHECK(cuMemAlloc_v2(&made, bytes));
  return made;
}

static void *context;

static void *other_thread(void *unused) {
  CHECK(cuCtxSetCurrent(context));
  allocate(7 * MIB);
  return unused;
}

static void use(void) {
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
}

/* Opens more ranges than are recorded, and a child opens one without memory. */
static void many(void) {
  pid_t child = fork();
  push("without memory");
  if (child == 0) _exit(0);
  waitpid(child, NULL, 0);
  pop();
  for (int i = 0; i < 5000; i++) push("without an end");
  use();
  allocate(MIB);
  for (int i = 0; i < 10; i++) push("after the last event");
}

int main(int count, char **words) {
  (void)words;
  const char *path = getenv("NVTX_INJECTION64_PATH");
  void *library = path ? dlopen(path, RTLD_LAZY) : NULL;
  int (*initialize)(const void *(*)(uint32_t)) = NULL;
  for (int at = 1; at <= COUNT; at++) {
    core_table[at] = &core[at];
    core2_table[at] = &core2[at];
  }
  if (library) *(void **)&initialize = dlsym(library, "InitializeInjectionNvtx2");
  if (!initialize) {
    printf("no library for NVTX\n");
    return 1;
  }
  if (initialize(table_of) != 1) return 1;

  if (count > 1) {
    many();
    return 0;
  }
  printf("levels: %d", push("program"));
  use();
  ptr kept = 0;
  for (int step = 0; step < 3; step++) {
    printf(" %d", push("step"));
    ptr made = allocate((2 + step) * MIB);
    kept = allocate(MIB);
    CHECK(cuMemFree_v2(made));
    printf(" %d", pop());
  }
  uint64_t whole = start("all threads");
  push_wide(L"wide \u00e4");
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, other_thread, NULL));
  CHECK(pthread_join(thread, NULL));
  pop();
  end(whole);

  /* A domain, with a registered name. */
  uintptr_t (*create)(const char *) = (uintptr_t (*)(const char *))core2[12];
  uintptr_t (*enter_text)(uintptr_t, const char *) =
      (uintptr_t (*)(uintptr_t, const char *))core2[10];
  uintptr_t domain = create("library");
  attributes given = {.version = 3, .size = sizeof given, .message_kind = 3};
  given.message = (const void *)enter_text(domain, "setup");
  printf(" %d", ((int (*)(uintptr_t, const attributes *))core2[4])(domain, &given));
  CHECK(cuMemFree_v2(kept));
  allocate(5);
  printf(" %d", ((int (*)(uintptr_t))core2[5])(domain));
  given.message_kind = 1;
  given.message = "ascii";
  end(((uint64_t (*)(const attributes *))core[4])(&given));
  /* Invalid names, and ends without a start. */
  given.message_kind = 3;
  given.message = (void *)12345;
  end(((uint64_t (*)(const attributes *))core[4])(&given));
  end(987654321);
  printf(" %d", pop());
  printf(" %d\n", pop());
  return 0;
}
