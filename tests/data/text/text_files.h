// Files of text, and the documents that TextReader finds in them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "dtopp/data/text/text_reader.h"
#include "tests/base/scratch_directory.h"
#include "tests/data/token_fixtures.h"

namespace dtopp::data {

// Reads all documents of a file that are not empty.
class TextReader {
 public:
  explicit TextReader(const std::filesystem::path& path, uint64_t max_bytes = kMaxLineBytes)
      : path_(path), lines_(path, {}, {.max_bytes = max_bytes}) {}
  bool next(std::string& document) {
    while (lines_.next(line_)) {
      document = parser_.parse(path_, lines_.line_number(), line_);
      if (!document.empty()) return true;
    }
    return false;
  }

 private:
  std::filesystem::path path_;
  LineReader lines_;
  DocumentParser parser_;
  std::string line_;
};

inline std::string gzip(const std::string& text) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string zstd(const std::string& text) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

inline std::vector<std::string> documents_of(const std::filesystem::path& path) {
  TextReader reader(path);
  std::vector<std::string> documents;
  for (std::string document; reader.next(document);) documents.push_back(document);
  return documents;
}

class TextReaderTest : public testing::Test {
 protected:
  std::vector<std::string> read(const std::string& name, const std::string& bytes) {
    write_bytes(scratch_ / name, bytes);
    return documents_of(scratch_ / name);
  }
  // The error names the file and `what`.
  void expect_error(const std::string& name, const std::string& bytes, const std::string& what) {
    write_bytes(scratch_ / name, bytes);
    const auto message = error_of<DataError>([&] { documents_of(scratch_ / name); });
    EXPECT_NE(message.find((scratch_ / name).string()), message.npos) << message;
    EXPECT_NE(message.find(what), message.npos) << message << "\nlacks " << what;
  }

  ScratchDirectory scratch_;
};

using Documents = std::vector<std::string>;

}  // namespace dtopp::data
