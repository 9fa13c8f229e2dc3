// Lines that ranks send each other. An accepted line prints and reads back equal.
#include <sstream>

#include "dtopp/distributed/rank_records.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;
using namespace dtopp::distributed;

static void receive(RankRecords& records, int64_t rank, const std::string& line) {
  if (const auto state = RankState::from_line(line)) {
    const auto again = RankState::from_line(state->to_line());
    fuzz::require(again && again->to_line() == state->to_line(), "a printed state is the same");
    fuzz::require(!state->location().empty(), "a state has a location");
    records.received(rank, *state);
    if (const auto lost = records.pass(15)) fuzz::require(!lost->line().empty(), "a loss has a line");
    if (state->activity == "report") records.left(rank);
  }
  if (const auto lost = LostRank::from_text(line)) {
    const auto again = LostRank::from_text(lost->to_text());
    fuzz::require(again && again->line() == lost->line(), "a printed loss is the same");
  }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream lines(fuzz::Input(data, size).rest());
  RankRecords records({"a", "b", "c"}, {});
  int64_t rank = 0;
  for (std::string line; std::getline(lines, line) && rank < 30; ++rank) receive(records, rank % 3, line);
  return 0;
}
