// UTF-8 and NFC: equal to simdjson and to utf8proc.
#include "dtopp/data/text/unicode.h"

#include <memory>

#include <simdjson.h>
#include <utf8proc.h>

#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static std::string nfc_of_utf8proc(const std::string& text) {
  utf8proc_uint8_t* nfc = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &nfc,
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(nfc, &std::free);
  fuzz::require(size >= 0, "utf8proc accepts valid UTF-8");
  return {reinterpret_cast<const char*>(nfc), static_cast<size_t>(size)};
}

// Code points at which dtopp and utf8proc differ. For dtopp they compose with nothing and stay where they
// are: marks and second parts of pairs that are newer than the Unicode version of the NFC of `tokenizers`,
// and U+11A7, which utf8proc 2.8 drops behind a Hangul syllable although it is no trailing consonant.
static bool is_ordinary_only_in_dtopp(char32_t c) {
  if (data::CodePointClasses::get().is_nfc_active(c)) return false;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  const bool is_second_part = property->comb_index >= 0x8000 && property->comb_index != UINT16_MAX;
  return c == U'\u11A7' || property->combining_class != 0 || is_second_part;
}

// NFC by utf8proc of the texts between such code points.
static std::string reference_nfc(const std::string& text) {
  std::string nfc;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const data::CodePoint c = data::code_point_at(text, i);
    if (is_ordinary_only_in_dtopp(c.value)) {
      nfc += nfc_of_utf8proc(text.substr(begin, i - begin)) + text.substr(i, c.bytes);
      begin = i + c.bytes;
    }
    i += c.bytes;
  }
  return nfc + nfc_of_utf8proc(text.substr(begin));
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::Input(data, size).rest();
  const auto invalid = data::find_invalid_utf8(text);
  fuzz::require(invalid.has_value() != simdjson::validate_utf8(text), "simdjson agrees on valid UTF-8");
  if (invalid) {
    fuzz::require(simdjson::validate_utf8(text.data(), *invalid),
                  "the text before the first invalid byte is valid");
    fuzz::require(!data::find_invalid_utf8(data::replace_invalid_utf8(text)), "a replaced text is valid");
    return 0;
  }
  std::string storage, again;
  const std::string old(
      data::replace_new_code_points(text, storage));  // utf8proc may treat newer ones otherwise
  fuzz::require(old.size() == text.size(), "a stand-in has the same length");
  const std::string nfc(data::normalize_nfc(old, storage));
  fuzz::require(nfc == reference_nfc(old), "utf8proc agrees on NFC");
  fuzz::require(data::normalize_nfc(nfc, again) == nfc, "NFC of NFC is the same");
  fuzz::require(!data::find_invalid_utf8(data::normalize_nfc(text, again)), "NFC is UTF-8");
  return 0;
}
