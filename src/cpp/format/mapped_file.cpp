// Maps a regular file with mmap and closes the descriptor immediately: the mapping keeps the file open.
#include "format/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "format/text.h"

namespace lb {
namespace {

class Descriptor {
 public:
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  explicit Descriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// The address range of a mapping, for the signal handler. Entries are reused but never freed, so the handler walks the
// list without a lock. An entry without a mapping has an empty range.
struct Watch {
  std::atomic<uintptr_t> begin = 0, end = 0;
  std::atomic<bool> is_lost = false;
  Watch* next = nullptr;
  std::string identity;  // for writers

  bool contains(uintptr_t at) const { return begin <= at && at < end; }
};

std::atomic<Watch*> watches = nullptr;
std::mutex watches_mutex;  // of writers
std::atomic<int> n_lost = 0;
const auto page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
struct sigaction previous_action{};

Watch* find_watch(uintptr_t at) {
  for (Watch* watch = watches; watch != nullptr; watch = watch->next)
    if (watch->contains(at)) return watch;
  return nullptr;
}

// Replaces the pages from the faulting one to the end of its mapping by zeros: the file ends before them.
bool replace_lost_pages(uintptr_t at) {
  Watch* watch = find_watch(at);
  if (watch == nullptr) return false;
  const uintptr_t page = at / page_bytes * page_bytes;
  const uintptr_t end = (watch->end + page_bytes - 1) / page_bytes * page_bytes;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  if (::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ, kFlags, -1, 0) == MAP_FAILED) return false;
  if (!watch->is_lost.exchange(true)) ++n_lost;
  return true;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool is_replaced = replace_lost_pages(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = error;
  if (is_replaced) return;  // the read repeats
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) return previous_action.sa_sigaction(signal, info, context);
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
    return previous_action.sa_handler(signal);
  ::sigaction(SIGBUS, &previous_action, nullptr);  // the fault repeats and ends the process
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);  // a macro on some systems
    ::sigaction(SIGBUS, &action, &previous_action);
  });
}

void begin_watch(const std::byte* data, size_t size, std::string identity) {
  install_handler();
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(watches_mutex);
  Watch* watch = watches;
  while (watch != nullptr && watch->end != 0) watch = watch->next;
  const bool is_new = watch == nullptr;
  if (is_new) watch = new Watch;
  watch->begin = begin;
  watch->end = begin + size;
  watch->identity = std::move(identity);
  if (!is_new) return;
  watch->next = watches;
  watches = watch;
}

void end_watch(const std::byte* data) {
  const std::lock_guard lock(watches_mutex);
  Watch* watch = find_watch(reinterpret_cast<uintptr_t>(data));
  if (watch == nullptr) return;
  watch->end = 0;
  watch->begin = 0;
  if (watch->is_lost.exchange(false)) --n_lost;
}

}  // namespace

MappedFile::MappedFile(std::string path, const std::byte* data, size_t size, std::string identity)
    : path_(std::move(path)), data_(data), size_(size) {
  if (data_ != nullptr) begin_watch(data_, size_, std::move(identity));
}

std::string MappedFile::identity(const std::byte* data) {
  const std::lock_guard lock(watches_mutex);
  const Watch* watch = find_watch(reinterpret_cast<uintptr_t>(data));
  LB_ASSERT(watch != nullptr);
  return watch->identity;
}

bool MappedFile::any_lost() { return n_lost != 0; }

void MappedFile::check_intact(const std::byte* data, const std::string& where) {
  if (!any_lost()) return;
  const Watch* watch = find_watch(reinterpret_cast<uintptr_t>(data));
  LB_CHECK(watch == nullptr || !watch->is_lost, kIo, where,
           ": the file became shorter while it was in use, so its contents are lost; load the model again");
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  LB_CHECK(path.find('\0') == std::string::npos, kIo, printable(path), ": a path cannot hold a zero byte");
  const Descriptor fd(path);
  LB_CHECK(fd.get() >= 0, kIo, printable(path), ": cannot open: ", std::strerror(errno));
  struct stat status{};
  LB_CHECK(::fstat(fd.get(), &status) == 0, kIo, printable(path), ": cannot stat: ", std::strerror(errno));
  LB_CHECK(S_ISREG(status.st_mode), kIo, printable(path), ": expected a regular file, found ",
           S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket");
  LB_CHECK(static_cast<uint64_t>(status.st_size) <= SIZE_MAX, kIo, printable(path), ": too large for this machine");
  const auto size = static_cast<size_t>(status.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    LB_CHECK(data != MAP_FAILED, kIo, printable(path), ": cannot map ", size, " bytes: ", std::strerror(errno));
  }
#if defined(__APPLE__)
  const timespec& modified = status.st_mtimespec;
#else
  const timespec& modified = status.st_mtim;
#endif
  std::string identity = cat(status.st_dev, '/', status.st_ino, '/', size, '/', modified.tv_sec, '.', modified.tv_nsec);
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, static_cast<const std::byte*>(data), size, std::move(identity)));
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  end_watch(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::read_ahead(const std::byte* from, size_t bytes) {
  const size_t into_page = reinterpret_cast<uintptr_t>(from) % page_bytes;
  ::madvise(const_cast<std::byte*>(from) - into_page, into_page + bytes, MADV_WILLNEED);
}

}  // namespace lb
