// Reads the members of a tar file, plain or compressed (.gz, .zst), in order. Nothing is extracted to disk:
// names are only text, and links are not followed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/data/text/byte_source.h"

struct archive;

namespace dtopp {

enum class MemberKind { kFile, kLink, kOther };

struct TarMember {
  std::string name;
  MemberKind kind = MemberKind::kFile;
  uint64_t size = 0;
};

class TarReader {
 public:
  explicit TarReader(const std::filesystem::path& path);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  // Returns the next member; nullopt after the last one. Folders are skipped. Throws DataError, naming the
  // file and the byte (in the compressed file), if the file is truncated, damaged or not a tar file.
  std::optional<TarMember> next();
  // Returns the bytes of the member that next() returned last. Throws as next() does.
  std::string read();
  uint64_t file_bytes() const { return source_->file_bytes(); }

 private:
  static ptrdiff_t on_read(archive*, void* self, const void** block);
  static int64_t on_skip(archive*, void* self, int64_t count);
  template <class Call>
  auto guarded(archive* reader, Call call) -> decltype(call());
  void note_end(size_t count);
  [[noreturn]] void fail(const std::string& cause);
  [[noreturn]] void fail_as_archive();

  std::filesystem::path path_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> block_;
  uint64_t zeros_at_end_ = 0;  // zero bytes at the end of the bytes read so far
  std::exception_ptr error_;   // exception that the source threw inside libarchive
  uint64_t size_ = 0;          // size of the current member
  bool at_end_ = false;
  archive* archive_;
};

}  // namespace dtopp
