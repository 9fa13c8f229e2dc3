// Exif data, class numbers, labels in JSON, and the names of an archive's members.
#include "dtopp/data/images/image_source.h"
#include "dtopp/data/images/picture.h"
#include "dtopp/data/text/unicode.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static void read_name(const std::string& name) {
  const std::string fault = data::name_fault(name), printed = data::printable(name);
  fuzz::require(printed.size() <= 203 && !data::find_invalid_utf8(printed),
                "a printed name is short and UTF-8");
  fuzz::require(printed.find('\n') == printed.npos, "a printed name is one line");
  fuzz::require(name.starts_with(data::key_of(name)), "a key begins its name");
  static_cast<void>(data::role_of(name));
  if (fault.empty())
    fuzz::require(!name.starts_with('/') && data::folder_of(name) != "..", "a safe name stays inside");
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const size_t kind = input.choice(4);
  const std::string text = input.rest();
  if (kind == 0) {
    const int orientation = data::exif_orientation(input.bytes());
    fuzz::require(orientation >= 1 && orientation <= 8, "an orientation is from 1 to 8");
  } else if (kind == 1) {
    read_name(text);
  } else {
    fuzz::accepts([&] {
      const int64_t label = kind == 2 ? data::parse_class_number(text) : data::parse_json_label(text);
      fuzz::require(label >= -1 && label < data::kMaxClasses, "a class is in its range");
    });
  }
  return 0;
}
