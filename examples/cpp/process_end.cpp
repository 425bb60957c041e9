// Is the memory of a process that ended, or was killed, free for others?
//
// Yes. When a process ends, the driver frees all memory that the runtime or a heap took for it.
// Memory stays taken while a process still lives, such as a forked child, or a program that is
// stopped in its shell. This program starts itself as a second process. It reads the device's free
// memory while the second process holds memory, and after its end.
//
//     plain                                   with gpuheap
//     cudaMalloc(&p, n);                      heap.allocate<char>(n).release();
//     _exit(0);   // or killed                _exit(0);   // or killed
//
// Needs a GPU, or the emulated driver and runtime (docs/cpp.md, "Without a toolkit, without a
// GPU"). `gpuheap doctor` names the processes that hold memory of a GPU.
#include <gpuheap.hpp>

#include "runtime.hpp"

#include <csignal>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

constexpr std::size_t BYTES = 256 << 20;

// Lets the processes share an emulated device. Without a common account file, each process has its
// own device. Real drivers ignore the environment variable that names the file.
class shared_account {
 public:
  shared_account() {
    int file = std::getenv(VARIABLE) == nullptr ? mkstemp(name_) : -1;
    if (file < 0) return;
    close(file);
    setenv(VARIABLE, name_, 1);
    is_made_ = true;
  }
  ~shared_account() {
    if (is_made_) unlink(name_);
  }

 private:
  static constexpr const char *VARIABLE = "GPUHEAP_EMULATED_ACCOUNT";
  char name_[32] = "/tmp/gpuheap-account-XXXXXX";
  bool is_made_ = false;
};

static int wait_for_the_end() {
  std::printf("x");
  std::fflush(stdout);
  return pause();
}

// Runs in the second process: takes memory, prints a byte, and waits for a signal.
static int hold(const char *how) {
  void *memory;
  if (std::strcmp(how, "plain") == 0) {
    CHECK(cudaMalloc(&memory, BYTES));
    return wait_for_the_end();
  }
  gpuheap::heap heap("cuda:0");
  memory = heap.allocate<char>(BYTES).release();
  return wait_for_the_end();
}

static void look(const char *program, const char *how, int signal) {
  std::size_t before = device_free();
  int said[2];
  if (pipe(said) != 0) std::exit(1);
  pid_t other = fork();
  if (other == 0) {
    // Starts this program anew with the pipe as output: a forked child cannot use the device.
    dup2(said[1], 1);
    close(said[0]);
    close(said[1]);
    execl(program, program, how, static_cast<char *>(nullptr));
    _exit(127);
  }
  close(said[1]);
  char holds = 0;
  bool is_there = read(said[0], &holds, 1) == 1;
  bool takes = taken_since(before) >= (long long)(BYTES >> 20);
  kill(other, signal);
  waitpid(other, nullptr, 0);
  close(said[0]);
  std::printf("%s, %s: it holds memory: %s; after its end: %lld MiB taken\n", how,
              strsignal(signal), is_there && takes ? "yes" : "no", taken_since(before));
}

int main(int count, char **arguments) try {
  if (count == 2) return hold(arguments[1]);
  shared_account account;
  CHECK(cudaFree(nullptr));
  for (int signal : {SIGTERM, SIGKILL}) {
    look(arguments[0], "plain", signal);
    look(arguments[0], "gpuheap", signal);
  }
  return 0;
} catch (const gpuheap::error &why) {
  std::fprintf(stderr, "%s\n", why.what());
  return 1;
}
