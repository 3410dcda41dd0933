// Untrusted JSON text: parsed values can be visited, and getters of the wrong type throw.
#include "format/json.h"
#include "format/text.h"
#include "fuzz_target.h"

namespace {

void walk(const lb::Json& json) {
  refuse_or_parse([&] { static_cast<void>(json.integer()); });
  refuse_or_parse([&] { static_cast<void>(json.at("key")); });
  if (json.is_string()) require(lb::is_utf8(json.string()));
  if (json.is_array())
    for (const lb::Json& item : json.array()) walk(item);
  if (json.is_object())
    for (const auto& [key, value] : json.members()) {
      require(lb::is_utf8(key));
      require(json.find(key) == &value);  // the parser rejects duplicate keys
      walk(value);
    }
}

}  // namespace

std::vector<std::string> seed_inputs() {
  return {
      R"({"model_type": "qwen35", "hidden_size": 1024, "eps": 1e-6, "tie": true, "none": null})",
      R"({"key": [0, -1, 2.5, 1E+3, -0, 9223372036854775807, 1000000000000000019884624838656], "b": [[], {}, [[1]]]})",
      R"(["\u0041\u00e9\ud83d\ude00", "\"\\\/\b\f\n\r\t", "h\u00e9", ""])",
      "\"h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\"",
      " \t\r\n{ \"a\" : { \"b\" : { \"c\" : [ 1 , 2 ] } } } ",
      std::string(60, '[') + std::string(60, ']'),
      "[0" +
          [] {
            std::string zeros;
            for (int i = 0; i < 200; ++i) zeros += ",0";
            return zeros;
          }() +
          "]",
  };
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const HeapCopy input(data, size);
  const bool accepted = refuse_or_parse([&] { walk(lb::parse_json(input.text(), "input")); });
  return accepted ? 0 : -1;
}
