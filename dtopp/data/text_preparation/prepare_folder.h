// Opens, checks and cleans the output folder of `dtopp prepare text`.
#pragma once

#include <filesystem>
#include <optional>

#include "dtopp/data/text_preparation/prepare_record.h"
#include "dtopp/data/tokens/token_folder.h"

namespace dtopp {

// Returns the facts of a complete folder after checking its files against its manifest. Returns nullopt if
// the folder is not complete. Changes nothing. Throws UsageError if a file does not belong to a preparation
// or if another job made the folder. Throws DataError if a file is damaged.
std::optional<TokenFacts> find_complete(const std::filesystem::path& folder, const TextJob& job);

// Returns the progress of an unfinished folder. If the folder has no record yet, writes and returns its first
// one. Throws as find_complete() does. Precondition: this process has locked the folder.
PrepareRecord begin_folder(const std::filesystem::path& folder, TextJob job);

// Removes the files that only an unfinished folder needs. Does nothing without an intact record of dtopp.
void clear_up(const std::filesystem::path& folder);

}  // namespace dtopp
