// The names of a checkpoint's files, and of the checkpoints in their folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp {

inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kModelIndexFile[] = "model.safetensors.index.json";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";
inline constexpr char kStateFile[] = "state.json";
inline constexpr char kConfigFile[] = "config.yaml";
inline constexpr char kTokenizerFile[] = "tokenizer.json";
inline constexpr char kCheckpointFormat[] = "dtopp checkpoint 1";

// Whether only a run that goes on needs the file: optimizer.safetensors, whole or in parts.
inline bool is_optimizer_file(std::string_view name) { return name.starts_with("optimizer"); }

// "step-00001000"
std::string checkpoint_name(int64_t step);

// Whether that is the name of some step.
bool is_checkpoint_name(const std::string& name);

// Steps of the checkpoints in the directory, newest first; none where there is no directory. DataError where
// it cannot be listed.
std::vector<int64_t> list_checkpoint_steps(const std::filesystem::path& checkpoints);

}  // namespace dtopp
