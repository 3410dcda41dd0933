// A recursive-descent parser over a string_view; the depth limit bounds the stack.
#include "format/json.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "format/text.h"

namespace lb {

class JsonParser {
 public:
  JsonParser(std::string_view text, const std::string& where, uint64_t first_offset)
      : text_(text), source_(std::make_shared<const std::string>(where)), first_offset_(first_offset) {}

  Json parse() {
    if (text_.size() > kJsonMaxBytes)
      fail_here("expected at most ", kJsonMaxBytes, " bytes of JSON, found ", text_.size());
    const std::string_view other = foreign_content(text_.substr(0, 128));
    if (!other.empty()) fail(ErrorCode::kFormat, *source_, ": not JSON: ", other);
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // a byte order mark
    skip_space();
    Json root = value(0);
    skip_space();
    if (at_ != text_.size()) fail_here("expected the end of the JSON text, found ", found());
    return root;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail_at(size_t at, Parts&&... parts) const {
    fail(ErrorCode::kFormat, *source_, ": at byte ", first_offset_ + at, ": ", std::forward<Parts>(parts)...);
  }
  template <class... Parts>
  [[noreturn]] void fail_here(Parts&&... parts) const {
    fail_at(at_, std::forward<Parts>(parts)...);
  }
  std::string found() const { return at_ < text_.size() ? quoted(text_.substr(at_, 1)) : "the end of the text"; }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r')) ++at_;
  }
  void expect(char c, const char* what) {
    if (peek() != c) fail_here("expected ", what, ", found ", found());
    ++at_;
  }

  Json value(int depth) {
    if (++n_values_ > kJsonMaxValues) fail_here("more than ", kJsonMaxValues, " values");
    if (depth > kJsonMaxDepth) fail_here("nested deeper than ", kJsonMaxDepth, " levels");
    Json json;
    json.source_ = source_;
    json.offset_ = first_offset_ + at_;
    switch (peek()) {
      case '{': json.value_ = object(depth); break;
      case '[': json.value_ = array(depth); break;
      case '"': json.value_ = string(); break;
      case 't': word("true"), json.value_ = true; break;
      case 'f': word("false"), json.value_ = false; break;
      case 'n': word("null"); break;
      default: number(json);
    }
    return json;
  }

  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

  void word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) fail_here("expected ", expected);
    at_ += expected.size();
  }

  std::vector<Json> array(int depth) {
    std::vector<Json> items;
    ++at_;
    skip_space();
    if (peek() == ']') return ++at_, items;
    for (;;) {
      items.push_back(value(depth + 1));
      skip_space();
      if (peek() == ']') return ++at_, items;
      expect(',', "',' or ']'");
      skip_space();
    }
  }

  std::vector<Json::Member> object(int depth) {
    std::vector<Json::Member> members;
    const size_t start = at_++;
    skip_space();
    if (peek() == '}') return ++at_, members;
    for (;;) {
      if (peek() != '"') fail_here("expected a key in double quotes, found ", found());
      std::string key = string();
      skip_space();
      expect(':', "':' after a key");
      skip_space();
      members.push_back({std::move(key), value(depth + 1)});
      skip_space();
      if (peek() == '}') break;
      expect(',', "',' or '}'");
      skip_space();
    }
    ++at_;
    refuse_duplicates(members, start);
    return members;
  }

  void refuse_duplicates(const std::vector<Json::Member>& members, size_t start) const {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const Json::Member& member : members) keys.push_back(member.key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) fail_at(start, "this object has the key ", quoted(*twice), " more than once");
  }

  std::string string() {
    const size_t start = at_++;
    std::string out;
    for (;;) {
      const size_t first = at_;
      while (at_ < text_.size() && peek() != '"' && peek() != '\\' && static_cast<unsigned char>(peek()) >= 0x20) ++at_;
      out += text_.substr(first, at_ - first);
      if (at_ == text_.size()) fail_at(start, "this string has no end");
      if (peek() == '"') break;
      if (peek() != '\\') fail_here("a control character must be written as an escape");
      escape(out);
    }
    ++at_;
    if (!is_utf8(out)) fail_at(start, "this string is not valid UTF-8");
    return out;
  }

  void escape(std::string& out) {
    const size_t start = at_++;
    const char c = peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/': out += c; return;
      case 'b': out += '\b'; return;
      case 'f': out += '\f'; return;
      case 'n': out += '\n'; return;
      case 'r': out += '\r'; return;
      case 't': out += '\t'; return;
      case 'u': break;
      default: fail_at(start, "unknown escape");
    }
    uint32_t code = hex4(start);
    if (code >= 0xDC00 && code < 0xE000) fail_at(start, "a low surrogate without a high one before it");
    if (code >= 0xD800 && code < 0xDC00) {
      if (text_.substr(at_, 2) != "\\u") fail_at(start, "a high surrogate without a low one after it");
      at_ += 2;
      const uint32_t low = hex4(start);
      if (low < 0xDC00 || low >= 0xE000) fail_at(start, "a high surrogate without a low one after it");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(out, code);
  }

  uint32_t hex4(size_t start) {
    const std::string_view digits = text_.substr(std::min(at_, text_.size()), 4);
    uint32_t code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || error != std::errc() || end != digits.data() + 4)
      fail_at(start, "expected four hex digits after \\u");
    at_ += 4;
    return code;
  }

  static void append_utf8(std::string& out, uint32_t code) {
    const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xC0 | (code >> 6)), tail(0);
    } else if (code < 0x10000) {
      out += static_cast<char>(0xE0 | (code >> 12)), tail(6), tail(0);
    } else {
      out += static_cast<char>(0xF0 | (code >> 18)), tail(12), tail(6), tail(0);
    }
  }

  // Integers that fit int64 stay exact; every other number becomes the nearest double.
  void number(Json& json) {
    const size_t start = at_;
    const auto digits = [&] {
      const size_t first = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      return at_ - first;
    };
    if (peek() == '-') ++at_;
    // Python writes these numbers, which JSON lacks, into configurations: "time_step_limit": [0.0, Infinity].
    for (const auto& [word, real] : {std::pair("Infinity", kInfinity), std::pair("NaN", kNaN)})
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::string_view(word).size();
        json.value_ = text_[start] == '-' ? -real : real;
        return;
      }
    const bool leading_zero = peek() == '0';
    const size_t n_digits = digits();
    if (n_digits == 0) fail_at(start, "expected a JSON value, found ", found());
    if (leading_zero && n_digits > 1) fail_at(start, "a number must not start with 0");
    bool integer = true;
    if (peek() == '.') {
      integer = false;
      ++at_;
      if (digits() == 0) fail_here("expected a digit after the decimal point, found ", found());
    }
    if (peek() == 'e' || peek() == 'E') {
      integer = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (digits() == 0) fail_here("expected a digit of the exponent, found ", found());
    }
    const char *first = text_.data() + start, *last = text_.data() + at_;
    int64_t whole = 0;
    if (integer && std::from_chars(first, last, whole).ec == std::errc()) {
      json.value_ = whole;
      return;
    }
    double real = 0;
    if (std::from_chars(first, last, real).ec != std::errc()) fail_at(start, "this number is out of range");
    json.value_ = real;
  }

  std::string_view text_;
  std::shared_ptr<const std::string> source_;
  uint64_t first_offset_;
  size_t at_ = 0;
  size_t n_values_ = 0;
};

Json parse_json(std::string_view text, const std::string& where, uint64_t first_offset) {
  return JsonParser(text, where, first_offset).parse();
}

namespace {

const char* kind(const Json& json) {
  if (json.is_null()) return "null";
  if (json.is_boolean()) return "a boolean";
  if (json.is_integer()) return "an integer";
  if (json.is_number()) return "a number";
  if (json.is_string()) return "a string";
  return json.is_array() ? "an array" : "an object";
}

}  // namespace

std::string Json::where() const { return source_ ? cat(*source_, ": at byte ", offset_) : "JSON"; }

template <class T>
const T& Json::get(const char* expected) const {
  const T* value = std::get_if<T>(&value_);
  LB_CHECK(value, kFormat, where(), ": expected ", expected, ", found ", kind(*this));
  return *value;
}

bool Json::boolean() const { return get<bool>("a boolean"); }
int64_t Json::integer() const { return get<int64_t>("an integer"); }
double Json::number() const { return is_integer() ? static_cast<double>(integer()) : get<double>("a number"); }
const std::string& Json::string() const { return get<std::string>("a string"); }
const std::vector<Json>& Json::array() const { return get<std::vector<Json>>("an array"); }
const std::vector<Json::Member>& Json::members() const { return get<std::vector<Member>>("an object"); }

const Json* Json::find(std::string_view key) const {
  for (const Member& member : members())
    if (member.key == key) return &member.value;
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  const Json* value = find(key);
  LB_CHECK(value, kFormat, where(), ": expected an object with the key ", quoted(key), ", which is missing");
  return *value;
}

}  // namespace lb
