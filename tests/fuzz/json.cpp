// JSON text. A printed value parses to the same value.
#include "dtopp/base/json.h"

#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static void read_members(const JsonFields& fields, int depth) {
  for (const std::string& key : fields.keys()) {
    if (!fields.has(key)) {
      fuzz::require(!fuzz::accepts([&] { fields.text(key); }), "null is no member");
      continue;
    }
    fuzz::accepts([&] { fuzz::require(fields.integer(key, -5, 5) <= 5, "an integer is in its range"); });
    fuzz::accepts([&] { fields.count(key); });
    fuzz::accepts([&] { fields.integer(key); });
    fuzz::accepts([&] { fields.get<bool>(key); });
    fuzz::accepts([&] { fuzz::require(fields.number(key, 0, 1) <= 1, "a number is in its range"); });
    fuzz::accepts([&] { fields.get<std::vector<int64_t>>(key); });
    fuzz::accepts([&] { fields.text(key); });
    fuzz::accepts([&] { fields.texts(key); });
    fuzz::accepts([&] { fuzz::require(!fields.numbers(key).empty(), "there is at least one number"); });
    fuzz::accepts([&] {
      if (depth < 8) read_members(fields.object(key), depth + 1);
    });
    fuzz::accepts([&] { fields.objects(key); });
  }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::Input(data, size).rest();
  nlohmann::json value;
  fuzz::accepts(
      [&] { fuzz::require(parse_json(quote_json(text), "text").is_string(), "a quoted text is a string"); });
  if (!fuzz::accepts([&] { value = parse_json(text, "text"); })) return 0;
  fuzz::require(parse_json(dump_json(value), "text") == value, "a printed value is the same");
  fuzz::require(parse_json(dump_json(value, 2), "text") == value, "an indented value is the same");
  fuzz::require(unpack_json(pack_json(value)) == value, "an unpacked value is the same");
  fuzz::accepts([&] { read_members(JsonFields(text, "text"), 0); });
  return 0;
}
