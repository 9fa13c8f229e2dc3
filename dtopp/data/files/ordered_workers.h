// Processes items in several threads and returns the results in the order of the items.
//
// One thread produces items, worker threads turn each item into a result, and the caller takes the results in
// order. At most 2 * num_workers + 3 items exist at a time. Those between producer and caller take at most
// kMaxBytesPerWorker * (num_workers + 1) bytes, or are one item: item.bytes is the memory of an item or its
// result, whichever takes more.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtopp/base/errors.h"

namespace dtopp::data {

inline constexpr uint64_t kMaxBytesPerWorker = uint64_t{1} << 25;

template <class Source, class Work>
class OrderedWorkers {
 public:
  using Item = typename decltype(std::declval<Source&>().next())::value_type;
  using Result = std::invoke_result_t<Work&, Item, int>;

  // Starts the threads. `source.next()` returns a std::optional: the next item, or nullopt at the end. It
  // runs in its own thread.
  //
  // All `num_workers` threads call the same `work` at once, so it must be thread-safe. Its second argument is
  // the number of the thread, from 0.
  //
  // Throws:        ResourceError if a thread cannot be started
  OrderedWorkers(Source source, Work work, int num_workers)
      : source_(std::move(source)),
        work_(std::move(work)),
        limit_(2 * static_cast<size_t>(num_workers) + 2),
        max_bytes_(kMaxBytesPerWorker * (static_cast<uint64_t>(num_workers) + 1)) {
    threads_.reserve(static_cast<size_t>(num_workers) + 1);
    try {
      threads_.emplace_back([this] { run_producer(); });
      for (int worker = 0; worker < num_workers; ++worker)
        threads_.emplace_back([this, worker] { run_worker(worker); });
    } catch (const std::system_error& error) {
      close();
      throw ResourceError("a thread cannot be started: ", error.what(), "; use fewer workers");
    }
  }
  // Waits for calls in progress and discards the remaining items.
  ~OrderedWorkers() { close(); }

  // Returns the next result in order, or nullopt at the end. Rethrows the exception that `source` or `work`
  // threw for this item. Later items can be taken after an exception of `work`; one of `source` is the end.
  // Call it from one thread.
  std::optional<Result> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !pending_.empty() || finished_; });
    if (pending_.empty()) return std::nullopt;
    std::future<Result> result = std::move(pending_.front().result);
    lock.unlock();
    result.wait();  // before pop_front(), so that the item still counts as in flight
    lock.lock();
    pending_bytes_ -= pending_.front().bytes;
    pending_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return result.get();
  }

 private:
  struct Task {
    Item item;
    std::promise<Result> promise;
  };
  struct Pending {
    std::future<Result> result;
    uint64_t bytes;
  };

  void run_producer() {
    for (;;) {
      std::optional<Item> item;
      std::exception_ptr error;
      try {
        item = source_.next();
      } catch (...) {
        error = std::current_exception();
      }
      const uint64_t bytes = item ? item->bytes : 0;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || has_room(bytes); });
      if (stopped_) return;
      if (item || error) {
        std::promise<Result> promise;
        pending_.push_back({promise.get_future(), bytes});
        pending_bytes_ += bytes;
        if (error)
          promise.set_exception(error);
        else
          tasks_.push_back({std::move(*item), std::move(promise)});
      }
      finished_ = !item;
      lock.unlock();
      changed_.notify_all();
      if (!item) return;
    }
  }

  // Precondition: mutex_ is locked.
  bool has_room(uint64_t bytes) const {
    return pending_.empty() || (pending_.size() < limit_ && pending_bytes_ + bytes <= max_bytes_);
  }

  void run_worker(int worker) {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !tasks_.empty() || finished_ || stopped_; });
      if (tasks_.empty() || stopped_) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      try {
        task.promise.set_value(work_(std::move(task.item), worker));
      } catch (...) {
        task.promise.set_exception(std::current_exception());
      }
    }
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Source source_;
  Work work_;
  size_t limit_;
  uint64_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;       // items that no worker has taken yet
  std::deque<Pending> pending_;  // results that the caller has not taken yet, in order
  uint64_t pending_bytes_ = 0;
  bool finished_ = false;  // the producer has ended
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dtopp::data
