// Maps a regular file with mmap and closes the descriptor immediately: the mapping keeps the file open.
#include "format/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

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

}  // namespace

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
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::read_ahead(const std::byte* from, size_t bytes) {
  static const auto page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const size_t into_page = reinterpret_cast<uintptr_t>(from) % page_bytes;
  ::madvise(const_cast<std::byte*>(from) - into_page, into_page + bytes, MADV_WILLNEED);
}

}  // namespace lb
