// Reads and writes the ledger of a study: one file with the values of every finished run. It can be
// committed, and a study continues from it on any machine, without the folders of its runs.
//
//   {"runs": [{"run", "variant", "grid": {}, "seed", "config_hash", "data_hash", "values": {measure: number},
//              "diverged": [measure], "after": [command], "seconds", "steps", "tokens", "active_flops",
//              "made_by": {"device", "cpu", "version", …},
//              "curves": {measure: {"value": [], "tokens": [], "active_flops": [], "seconds": []}}}],
//    "earlier": [rows of runs whose configuration or data have changed since]}
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "dtopp/study/comparison.h"
#include "dtopp/study/curves.h"
#include "dtopp/study/run_folder.h"

namespace dtopp::study {

struct LedgerRow {
  std::string run;                // StudyRun::name
  std::string variant{}, grid{};  // grid: a JSON object
  int64_t seed = 0;
  std::string config_hash{}, data_hash{};
  RunRecord record{};                        // of a done run
  std::map<std::string, RunValue> values{};  // by measure
  int64_t steps = 0, tokens = 0;
  double active_flops = 0;
  std::map<std::string, std::string> made_by{};
  RunCurves curves{};
};

inline constexpr size_t kLedgerPoints = 64;  // of a curve

// Throws DataError if the two rows are of one run and a measure of both has two values.
void require_agreement(const LedgerRow& a, const std::string& place_of_a, const LedgerRow& b,
                       const std::string& place_of_b);

class Ledger {
 public:
  // Reads the file; a missing file is an empty ledger.
  //
  // Throws DataError if it is no ledger, or if two of its rows are of one run and differ.
  explicit Ledger(std::filesystem::path file);

  const std::filesystem::path& file() const { return file_; }
  // Returns the row of the run with this configuration and this data; nullptr if there is none. An empty
  // `data_hash` fits all data.
  const LedgerRow* find(const std::string& run, const std::string& config_hash,
                        const std::string& data_hash) const;
  // Adds a row, which replaces a row of the same run, configuration and data. It becomes the current row of
  // its run.
  void add(LedgerRow row);
  // Writes the file atomically and creates its folder.
  void write() const;

 private:
  std::filesystem::path file_;
  std::vector<LedgerRow> rows_;  // the last row of a run is the current one
};

}  // namespace dtopp::study
