// progress.json: how far an unfinished folder of token files is.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/data/text_preparation/text_batches.h"
#include "dtopp/data/text_preparation/token_file_writer.h"
#include "dtopp/data/tokens/token_folder.h"

namespace dtopp {

struct PrepareRecord {
  TextJob job;  // documents and tokens of each source count what is done
  CorpusPosition position;
  WrittenTokens written;

  TokenFacts facts() const { return {job, written.documents, written.tokens, written.max_token}; }
};

// Replaces the folder's record; durable on return.
void write_prepare_record(const std::filesystem::path& folder, const PrepareRecord& progress);
// The folder's record, where there is one that dtopp wrote. DataError when it is damaged.
std::optional<PrepareRecord> read_prepare_record(const std::filesystem::path& folder);

// How the job `now` differs from the one that a folder was made by, to follow the folder's name in a message;
// empty where it does not.
std::string job_difference(const TextJob& there, const TextJob& now);

}  // namespace dtopp
