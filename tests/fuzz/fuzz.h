// Shared by the fuzz targets. A target passes the bytes to a reader and requires a property of the result. It
// may refuse the bytes with an Error. Every other end of a run is a finding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace dtopp::fuzz {

// Ends the process, which the fuzzer reports, unless the property holds.
inline void require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "property does not hold: %s\n", property);
  std::abort();
}

// Calls read(). Returns whether it accepted the input; an Error refuses it and must explain why.
template <class Read>
bool accepts(const Read& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    require(*error.what() != '\0', "an error has a message");
    return false;
  }
}

// The bytes of one run, taken from the front.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : text_(reinterpret_cast<const char*>(data), size) {}

  // A number below `count`, from one byte; 0 at the end.
  size_t choice(size_t count) { return static_cast<uint8_t>(byte()) % count; }
  uint16_t number() {
    return static_cast<uint16_t>(static_cast<uint8_t>(byte()) << 8 | static_cast<uint8_t>(byte()));
  }
  // The text up to the next NUL, or up to the end.
  std::string part() {
    const size_t end = text_.find('\0');
    std::string part(text_.substr(0, end));
    text_.remove_prefix(end == text_.npos ? text_.size() : end + 1);
    return part;
  }
  bool empty() const { return text_.empty(); }
  std::string rest() const { return std::string(text_); }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text_.data(), text_.size())); }

 private:
  char byte() {
    if (text_.empty()) return 0;
    const char first = text_.front();
    text_.remove_prefix(1);
    return first;
  }

  std::string_view text_;
};

// A folder in memory that exists as long as the process.
inline const std::filesystem::path& scratch() {
  struct Folder {
    Folder() {
      std::string name =
          ::access("/dev/shm", W_OK) == 0 ? "/dev/shm/dtopp_fuzz_XXXXXX" : "/tmp/dtopp_fuzz_XXXXXX";
      require(::mkdtemp(name.data()) != nullptr, "a scratch folder can be created");
      path = name;
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::filesystem::path path;
  };
  static const Folder folder;
  return folder.path;
}

// Replaces a file of that folder, for readers that take a path.
inline std::filesystem::path write_scratch(const char* name, std::string_view bytes) {
  std::filesystem::path path = scratch() / name;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  require(file >= 0 && ::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
          "the scratch file can be written");
  ::close(file);
  return path;
}

// Ends the text as every manifest ends. Otherwise no changed input would pass the checksum.
inline std::string sealed(std::string text) {
  const std::string key = "  \"xxh3_128\": \"";
  text.resize(std::min(text.size(), text.rfind(key)));
  return text + key + hash_bytes(std::as_bytes(std::span(text))) + "\"\n}\n";
}

}  // namespace dtopp::fuzz
