// A whole file mapped read-only. Weights are used in place; the system pages them in on first touch.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lb {

class MappedFile {
 public:
  // Throws kIo when the file cannot be opened or mapped, or is not a regular file. An empty file maps to size 0.
  // Bytes that the file loses while it is mapped read as 0 from then on, and check_intact() reports them: reading them
  // raises SIGBUS, whose handler replaces the lost pages. The first open() installs the handler.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  // Throws kIo if the mapping that contains `data` has lost bytes that were read. `where` names the file.
  static void check_intact(const std::byte* data, const std::string& where);
  // Device, inode, size and time of the last change of the mapped file that contains `data`, as of its open().
  static std::string identity(const std::byte* data);
  // Whether any mapping of the process has lost bytes that were read.
  static bool any_lost();
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  const std::byte* data() const { return data_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  // Asks the kernel to start reading a part of a mapping; a hint, so failure is ignored.
  static void read_ahead(const std::byte* from, size_t bytes);

 private:
  MappedFile(std::string path, const std::byte* data, size_t size, std::string identity);

  std::string path_;
  const std::byte* data_;
  size_t size_;
};

}  // namespace lb
