// A file of each task's items.
#include "dtopp/tasks/task.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const tasks::Task& task = tasks::all_tasks()[input.choice(tasks::all_tasks().size())];
  const auto path = fuzz::write_scratch((std::string(task.name) + ".jsonl").c_str(), input.rest());
  fuzz::require(!fuzz::accepts([&] { tasks::load_task(task, fuzz::scratch()); }), "other items are refused");
  fuzz::accepts([&] {
    const tasks::TaskFile file = tasks::read_task_file(task, path);
    for (const tasks::DataSet& part : file.data_sets) {
      for (const tasks::TaskItem& item : part.items)
        fuzz::require(item.gold >= 0 && item.gold < std::max<int64_t>(task.num_choices, 1),
                      "gold is a choice");
    }
    fuzz::require(tasks::digest_items(file.data_sets).size() == 64, "a digest has 64 digits");
  });
  return 0;
}
