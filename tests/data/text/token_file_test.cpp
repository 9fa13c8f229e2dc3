#include "dtopp/data/text/token_file.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/base/scratch_directory.h"
#include "tests/data/token_fixtures.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargeVocabulary = 100000;

void write_pair(const fs::path& prefix, const IndexFields& fields, const std::string& ids) {
  write_bytes(prefix.string() + ".idx", fields.bytes());
  write_bytes(prefix.string() + ".bin", ids);
}

std::string ids_of_three_documents() { return array_bytes<uint16_t>({7, 0, 65535, 1, 0}); }

TEST(TokenFile, reads_a_megatron_pair_by_prefix_bin_or_idx) {
  const ScratchDirectory scratch;
  write_pair(scratch / "data.v1", {}, ids_of_three_documents());
  for (const char* name : {"data.v1", "data.v1.bin", "data.v1.idx"}) {
    const auto stream = TokenStream::open(scratch / name);
    EXPECT_EQ(all_tokens(stream), (std::vector<int64_t>{7, 0, 65535, 1, 0}));
    EXPECT_EQ(stream.documents(), 3U);
    EXPECT_EQ(stream.max_token(), 65535);
    EXPECT_FALSE(stream.tokenizer_hash().has_value());
  }
}

// A map of the file would raise SIGBUS.
TEST(TokenFile, that_became_shorter_is_an_error) {
  const ScratchDirectory scratch;
  write_bytes(scratch / "t.npy", array_bytes(std::vector<uint16_t>(20'000, 7)));
  const auto stream = TokenStream::open(scratch / "t.npy");
  fs::resize_file(scratch / "t.npy", 100);
  std::vector<int64_t> tokens(50);
  stream.read(0, tokens);
  EXPECT_EQ(tokens, std::vector<int64_t>(50, 7));
  for (const uint64_t offset : {1, 15'000}) {
    const auto message = error_of<DataError>([&] { stream.read(offset, tokens); });
    EXPECT_NE(message.find("t.npy: byte "), message.npos) << message;
    EXPECT_NE(message.find("it became shorter"), message.npos) << message;
  }
}

TEST(TokenFile, hashes_what_it_holds_wherever_that_lies) {
  const ScratchDirectory scratch;
  write_pair(scratch / "a", {}, ids_of_three_documents());
  write_bytes(scratch / "same.npy", ids_of_three_documents());
  write_bytes(scratch / "other.npy", array_bytes<uint16_t>({7, 0, 65534, 1, 0}));
  write_bytes(scratch / "shorter.npy", array_bytes<uint16_t>({7, 0, 65535, 1}));
  const auto hash = [&](const char* name) { return TokenStream::open(scratch / name).content_hash(); };
  EXPECT_EQ(hash("a").size(), 32U);
  EXPECT_EQ(hash("a"), hash("same.npy"));
  EXPECT_NE(hash("a"), hash("other.npy"));
  EXPECT_NE(hash("a"), hash("shorter.npy"));
}

template <class T>
void expect_reads_type(uint8_t code, T largest) {
  const ScratchDirectory scratch;
  IndexFields fields;
  fields.type = code;
  fields.pointers = {0, 2 * sizeof(T), 2 * sizeof(T)};
  write_pair(scratch / "t", fields, array_bytes<T>({1, 2, 3, largest, 0}));
  const auto stream = TokenStream::open(scratch / "t");
  EXPECT_EQ(all_tokens(stream), (std::vector<int64_t>{1, 2, 3, static_cast<int64_t>(largest), 0}));
  EXPECT_EQ(stream.max_token(), static_cast<int64_t>(largest));
}

TEST(TokenFile, reads_every_integer_type_of_megatron) {
  expect_reads_type<uint8_t>(1, 255);
  expect_reads_type<int8_t>(2, 127);
  expect_reads_type<int16_t>(3, 32767);
  expect_reads_type<int32_t>(4, 2147483647);
  expect_reads_type<int64_t>(5, std::numeric_limits<int64_t>::max());
  expect_reads_type<uint16_t>(8, 65535);
}

TEST(TokenFile, joins_the_files_of_a_folder_in_the_order_of_their_names) {
  const ScratchDirectory scratch;
  write_pair(scratch / "b", {}, ids_of_three_documents());
  write_bytes(scratch / "a.npy", array_bytes<uint16_t>({100, 200}));
  write_bytes(scratch / "c.npy", array_bytes<uint16_t>({300}));
  const auto stream = TokenStream::open(scratch.path());
  EXPECT_EQ(all_tokens(stream), (std::vector<int64_t>{100, 200, 7, 0, 65535, 1, 0, 300}));
  for (uint64_t offset = 0; offset <= 8; ++offset) {
    for (uint64_t count = 0; offset + count <= 8; ++count) {
      std::vector<int64_t> part(count);
      stream.read(offset, part);
      const auto all = all_tokens(stream);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<int64_t>(offset)));
    }
  }
  std::vector<int64_t> one(1);
  EXPECT_THROW(stream.read(8, one), std::out_of_range);
  EXPECT_THROW(stream.read(std::numeric_limits<uint64_t>::max(), one), std::out_of_range);
}

TEST(TokenFile, every_field_of_an_index_is_checked) {
  const ScratchDirectory scratch;
  using Spoil = void (*)(IndexFields&);
  const std::vector<std::pair<Spoil, const char*>> cases = {
      {[](IndexFields& f) { f.magic[0] = 'X'; }, "must begin with MMIDIDX"},
      {[](IndexFields& f) { f.version = 2; }, "version 2"},
      {[](IndexFields& f) { f.type = 0; }, "type code 0"},
      {[](IndexFields& f) { f.type = 6; }, "type code 6"},
      {[](IndexFields& f) { f.type = 9; }, "type code 9"},
      {[](IndexFields& f) { f.sequences = 2; }, "bytes follow the index"},
      {[](IndexFields& f) { f.sequences = 4; }, "needs 4 x 8 bytes"},
      {[](IndexFields& f) { f.sequences = std::numeric_limits<uint64_t>::max(); }, "byte 34: needs 18446"},
      {[](IndexFields& f) { f.sequences = uint64_t{1} << 62; }, "byte 34: needs 4611"},
      {[](IndexFields& f) { f.bounds = 3; }, "bytes follow the index"},
      {[](IndexFields& f) { f.bounds = std::numeric_limits<uint64_t>::max(); }, "byte 70: needs 18446"},
      {[](IndexFields& f) { f.lengths[0] = -1; }, "length -1"},
      {[](IndexFields& f) { f.lengths[0] = 3; }, "must begin at byte 6"},
      {[](IndexFields& f) { f.lengths[2] = 4; }, "lists 12 bytes"},
      {[](IndexFields& f) { f.lengths[2] = 2; }, "lists 8 bytes"},
      {[](IndexFields& f) { f.pointers[0] = 2; }, "must begin at byte 0"},
      {[](IndexFields& f) { f.pointers[2] = -4; }, "must begin at byte 4"},
      {[](IndexFields& f) { f.documents[0] = 1; }, "document bound 0"},
      {[](IndexFields& f) { f.documents[1] = -1; }, "document bound 1"},
      {[](IndexFields& f) { f.documents[2] = 0; }, "document bound 2"},
      {[](IndexFields& f) { f.documents[3] = 2; }, "document bound 3"},
      {[](IndexFields& f) { f.documents[3] = 4; }, "document bound 3"},
      {[](IndexFields& f) { f.documents.push_back(3); }, "bytes follow the index"},
  };
  for (const auto& [spoil, what] : cases) {
    IndexFields fields;
    spoil(fields);
    write_pair(scratch / "t", fields, ids_of_three_documents());
    expect_named(scratch / "t", "t.", what);
  }
}

TEST(TokenFile, a_pair_cut_anywhere_is_named) {
  const ScratchDirectory scratch;
  const std::string index = IndexFields().bytes();
  const std::string ids = ids_of_three_documents();
  for (size_t size = 0; size < index.size(); ++size) {
    write_bytes(scratch / "t.idx", index.substr(0, size));
    write_bytes(scratch / "t.bin", ids);
    expect_named(scratch / "t", "t.idx", "byte ");
  }
  write_bytes(scratch / "t.idx", index);
  for (size_t size = 0; size < ids.size(); ++size) {
    write_bytes(scratch / "t.bin", ids.substr(0, size));
    expect_named(scratch / "t", "t.bin", "byte " + std::to_string(size));
  }
  write_bytes(scratch / "t.bin", ids + '\0');
  expect_named(scratch / "t", "t.bin", "byte 11");
}

TEST(TokenFile, missing_parts_are_named) {
  const ScratchDirectory scratch;
  expect_named(scratch / "t", "t", "no token data");
  expect_named(scratch / "t", "t",
               "dtopp prepare text FILES --tokenizer FILE --output " + (scratch / "t").string());
  expect_named(scratch / "t.npy", "t.npy", "No such file");
  expect_named(scratch.path(), scratch.path(), "holds no token files");
  write_bytes(scratch / "t.bin", ids_of_three_documents());
  expect_named(scratch / "t", "t.idx", "No such file");
  expect_named(scratch.path(), "t.idx", "No such file");
  fs::remove(scratch / "t.bin");
  write_bytes(scratch / "t.idx", IndexFields().bytes());
  expect_named(scratch / "t", "t.bin", "No such file");
  expect_named(scratch.path(), "t.bin", "No such file");
}

TEST(TokenFile, negative_ids_are_named_with_their_byte) {
  const ScratchDirectory scratch;
  IndexFields fields;
  fields.type = 4;
  fields.pointers = {0, 8, 8};
  write_pair(scratch / "t", fields, array_bytes<int32_t>({1, 2, -1, 4, 5}));
  expect_named(scratch / "t", "t.bin", "byte 8");
}

TEST(TokenFile, headerless_npy_is_as_wide_as_the_vocabulary_needs) {
  const ScratchDirectory scratch;
  write_bytes(scratch / "t.npy", array_bytes<uint16_t>({1, 0, 65535, 0}));
  EXPECT_EQ(all_tokens(TokenStream::open(scratch / "t.npy")), (std::vector<int64_t>{1, 0, 65535, 0}));
  EXPECT_EQ(all_tokens(TokenStream::open(scratch / "t.npy", Verify::kAll, 65536)).size(), 4U);
  EXPECT_EQ(all_tokens(TokenStream::open(scratch / "t.npy", Verify::kAll, 65537)),
            (std::vector<int64_t>{1, 65535}));
  write_bytes(scratch / "t.npy", "123");
  expect_named(scratch / "t.npy", "t.npy", "byte 3");
  write_bytes(scratch / "t.npy", "123456");
  EXPECT_THROW(TokenStream::open(scratch / "t.npy", Verify::kAll, kLargeVocabulary), DataError);
}

std::string npy(const std::string& dictionary, const std::string& data, char major = 1) {
  std::string text("\x93NUMPY", 6);
  text += major;
  text += '\0';
  if (major == 1)
    put(text, static_cast<uint16_t>(dictionary.size()));
  else
    put(text, static_cast<uint32_t>(dictionary.size()));
  return text + dictionary + data;
}

std::string npy_header(const std::string& descr, const std::string& shape,
                       const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }     \n";
}

TEST(TokenFile, reads_what_numpy_saves) {
  const ScratchDirectory scratch;
  const auto expect = [&](const std::string& bytes) {
    write_bytes(scratch / "t.npy", bytes);
    EXPECT_EQ(all_tokens(TokenStream::open(scratch / "t.npy", Verify::kAll, kLargeVocabulary)),
              (std::vector<int64_t>{5, 6, 70}));
  };
  expect(npy(npy_header("<u2", "(3,)"), array_bytes<uint16_t>({5, 6, 70})));
  expect(npy(npy_header("<u4", "(3,)", "True"), array_bytes<uint32_t>({5, 6, 70})));
  expect(npy(npy_header("<i4", "(3,)"), array_bytes<int32_t>({5, 6, 70}), 2));
  expect(npy(npy_header("<i8", "(3,)"), array_bytes<int64_t>({5, 6, 70}), 3));
  expect(npy(npy_header("|u1", "(3,)"), array_bytes<uint8_t>({5, 6, 70})));
}

TEST(TokenFile, hostile_npy_headers_are_refused_by_name) {
  const ScratchDirectory scratch;
  const std::string ids = array_bytes<uint16_t>({5, 6, 7});
  std::string endless = npy(npy_header("<u2", "(3,)"), ids, 2);
  for (size_t i = 8; i < 12; ++i) endless[i] = '\xff';
  const std::vector<std::pair<std::string, const char*>> cases = {
      {npy(npy_header("|O", "(3,)"), ids), "dtype '|O'"},
      {npy(npy_header(">u2", "(3,)"), ids), "dtype '>u2'"},
      {npy(npy_header("<f4", "(3,)"), ids), "dtype '<f4'"},
      {npy(npy_header("<u2", "(3, 1)"), ids), "one-dimensional"},
      {npy(npy_header("<u2", "()"), ids), "one-dimensional"},
      {npy(npy_header("<u2", "(-3,)"), ids), "not a list of"},
      {npy(npy_header("<u2", "(4,)"), ids), "needs 4 x 2"},
      {npy(npy_header("<u2", "(2,)"), ids), "2 bytes follow"},
      {npy(npy_header("<u8", "(2305843009213693952,)"), ids), "needs 2305843009213693952 x 8"},
      {npy(npy_header("<u2", "(99999999999999999999,)"), ids), "not a list of"},
      {npy("{}", ids), "lacks descr"},
      {npy(npy_header("<u2", "(3,)"), ids, 4), "version 4.0"},
      {endless, "too large"},
      {npy(npy_header("<u8", "(1,)"), array_bytes<uint64_t>({~uint64_t{0}})), "negative or at least"},
  };
  for (const auto& [bytes, what] : cases) {
    write_bytes(scratch / "t.npy", bytes);
    expect_named(scratch / "t.npy", "t.npy", what);
  }
  const std::string whole = npy(npy_header("<u2", "(3,)"), ids);
  for (size_t size = 6; size < whole.size(); ++size) {
    write_bytes(scratch / "t.npy", whole.substr(0, size));
    expect_named(scratch / "t.npy", "t.npy", "byte ");
  }
}

}  // namespace

}  // namespace dtopp::data
