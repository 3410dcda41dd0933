// A deterministic mutation driver for compilers without libFuzzer. Input number I of seed S always has the same bytes:
//   fuzz_gguf COUNT [--seed S] [--first I] [--corpus FOLDER]
// The driver detects crashes, inputs that take too long, and allocations out of proportion to the input's size.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>

#include "fuzz_target.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

constexpr size_t kMaxInput = 1 << 16;
constexpr double kMaxSeconds = 2;  // thousands of times the usual time, even with sanitizers
// Allocated bytes per byte of input. A JSON value takes 64 bytes in memory and at least 2 in the text; while a vector
// grows, both its old and its doubled buffer are allocated.
constexpr size_t kMaxBytesPerByte = 100;
constexpr size_t kFreeBytes = 1 << 20;
constexpr rlim_t kAddressSpace = rlim_t{1} << 30;

size_t live_bytes = 0, peak_bytes = 0;
char current[96] = "no input yet";

void report_current() {
  const ssize_t ignored = ::write(STDERR_FILENO, current, std::strlen(current));
  static_cast<void>(ignored);
}

void on_signal(int signal) {
  report_current();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& seeds, uint64_t stream) : seeds_(seeds), random_(stream) {}

  std::string next() {
    std::string input = pick_seed();
    for (size_t n = 1 + below(4); n > 0; --n) mutate(input);
    input.resize(std::min(input.size(), kMaxInput));
    return input;
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }
  const std::string& pick_seed() { return seeds_[below(seeds_.size())]; }

  void mutate(std::string& input) {
    const size_t at = below(input.size());
    const size_t length = std::min(1 + below(16), input.size() - at);
    switch (below(8)) {
      case 0:  // one bit
        if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1: input.resize(at); break;
      case 2: splice(input, at); break;
      case 3: write_integer(input, at); break;
      case 4: input.erase(at, length); break;
      case 5: input.insert(at, input.substr(at, length)); break;
      case 6: write_text(input, at); break;
      case 7:  // one byte
        if (!input.empty()) input[at] = static_cast<char>(random_());
        break;
    }
  }

  // Overwrites with a slice of another input, so that counts and lengths do not fit the content.
  void splice(std::string& input, size_t at) {
    const std::string& other = pick_seed();
    const size_t from = below(other.size());
    input.replace(at, std::min<size_t>(64, input.size() - at), other.substr(from, below(64)));
  }

  void write_integer(std::string& input, size_t at) {
    static constexpr uint64_t kEdges[] = {0,
                                          1,
                                          2,
                                          7,
                                          31,
                                          127,
                                          128,
                                          255,
                                          256,
                                          32767,
                                          65535,
                                          65536,
                                          1u << 20,
                                          0x7FFFFFFF,
                                          0x80000000,
                                          0xFFFFFFFF,
                                          0x100000000,
                                          uint64_t{1} << 60,
                                          INT64_MAX,
                                          uint64_t{1} << 63,
                                          UINT64_MAX - 7,
                                          UINT64_MAX};
    const uint64_t value = kEdges[below(std::size(kEdges))] + below(3) - 1;
    const size_t width = std::min<size_t>(size_t{1} << below(4), input.size() - at);
    std::memcpy(input.data() + at, &value, width);
  }

  void write_text(std::string& input, size_t at) {
    static constexpr const char* kPieces[] = {"0",
                                              "9",
                                              "-1",
                                              "18446744073709551615",
                                              "9223372036854775807",
                                              "1e999",
                                              "[",
                                              "]",
                                              "{",
                                              "}",
                                              "\"",
                                              "\\u",
                                              "\\ud800",
                                              "\\udc00",
                                              ",",
                                              ":",
                                              "null",
                                              "\xED\xA0\x80",
                                              "\xC0\x80",
                                              "[[[[[[[[",
                                              "F64",
                                              "\"shape\":",
                                              "\"data_offsets\":[0,0]"};
    const char* piece = kPieces[below(std::size(kPieces))];
    const size_t overwritten = below(2) ? std::min(std::strlen(piece), input.size() - at) : 0;
    input.replace(at, overwritten, piece);
  }

  const std::vector<std::string>& seeds_;
  std::mt19937_64 random_;
};

// Returns whether the parser accepted the input.
bool run_one(const std::string& input) {
  const size_t before = live_bytes;
  peak_bytes = live_bytes;
  const auto start = std::chrono::steady_clock::now();
  const int verdict = LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const size_t used = peak_bytes - before;
  if (seconds > kMaxSeconds)
    std::fprintf(stderr, "took %.1f s, expected at most %.0f\n", seconds, kMaxSeconds), std::abort();
  if (used > kFreeBytes + kMaxBytesPerByte * input.size())
    std::fprintf(stderr, "allocated %zu bytes for an input of %zu\n", used, input.size()), std::abort();
  require(live_bytes == before);
  return verdict == 0;
}

void limit_memory() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(report_current);  // no limit: the sanitizer reserves terabytes of address space
#else
  const rlimit limit{kAddressSpace, kAddressSpace};
  require(setrlimit(RLIMIT_AS, &limit) == 0);
#endif
}

void add_corpus(const char* folder, std::vector<std::string>& seeds) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
}

int usage(const char* program) {
  std::fprintf(stderr, "usage: %s COUNT [--seed S] [--first I] [--corpus FOLDER]\n", program);
  return 2;
}

}  // namespace

void* operator new(size_t size) {
  void* p = std::malloc(size);
  if (!p) throw std::bad_alloc();
  live_bytes += malloc_usable_size(p);
  peak_bytes = std::max(peak_bytes, live_bytes);
  return p;
}
void operator delete(void* p) noexcept {
  if (p) live_bytes -= malloc_usable_size(p);
  std::free(p);
}
void operator delete(void* p, size_t) noexcept { operator delete(p); }

int main(int argc, char** argv) {
  if (argc < 2 || argc % 2 != 0) return usage(argv[0]);
  const uint64_t count = std::strtoull(argv[1], nullptr, 10);
  uint64_t seed = 1, first = 0;
  std::vector<std::string> seeds = seed_inputs();
  for (int i = 2; i < argc; i += 2) {
    const std::string_view option = argv[i];
    if (option == "--seed") {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (option == "--first") {
      first = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (option == "--corpus") {
      add_corpus(argv[i + 1], seeds);
    } else {
      return usage(argv[0]);
    }
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) std::signal(signal, on_signal);
  limit_memory();
  for (const std::string& input : seeds) require(run_one(input));
  uint64_t accepted = 0;
  for (uint64_t i = first; i < first + count; ++i) {
    std::snprintf(current, sizeof current, "again with: 1 --seed %llu --first %llu\n",
                  static_cast<unsigned long long>(seed), static_cast<unsigned long long>(i));
    accepted += run_one(Mutator(seeds, seed * 0x9E3779B97F4A7C15u + i).next());
  }
  std::printf("%llu inputs from %zu seeds, %llu accepted: no crash, no slow input, memory in bounds\n",
              static_cast<unsigned long long>(count), seeds.size(), static_cast<unsigned long long>(accepted));
}
