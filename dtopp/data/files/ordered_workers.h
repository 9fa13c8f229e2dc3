// Work done by several threads, with results in the order of the work: one thread produces items, workers
// turn each into a result, the caller takes results in order. Memory is bounded by the items in flight.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "dtopp/base/errors.h"

namespace dtopp {

template <class Item, class Result>
class OrderedWorkers {
 public:
  // `produce` gives the next item, nothing at the end; it runs on a thread of its own. `work` is called from
  // `num_workers` threads at once, each with its own number.
  OrderedWorkers(std::function<std::optional<Item>()> produce, std::function<Result(Item, int)> work,
                 int num_workers)
      : produce_(std::move(produce)),
        work_(std::move(work)),
        limit_(2 * static_cast<size_t>(num_workers) + 2) {
    threads_.reserve(static_cast<size_t>(num_workers) + 1);
    try {
      threads_.emplace_back([this] { run_producer(); });
      for (int worker = 0; worker < num_workers; ++worker)
        threads_.emplace_back([this, worker] { run_worker(worker); });
    } catch (const std::system_error& error) {
      close();
      throw ResourceError(std::string("no more threads: ") + error.what() + "; use fewer workers");
    }
  }
  ~OrderedWorkers() { close(); }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  // The next result in order, nothing at the end. What produce or work threw for this place comes out here.
  std::optional<Result> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !pending_.empty() || finished_; });
    if (pending_.empty()) return std::nullopt;
    std::future<Result> result = std::move(pending_.front());
    lock.unlock();
    result.wait();  // while it still counts as in flight
    lock.lock();
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

  void run_producer() {
    for (;;) {
      std::optional<Item> item;
      std::exception_ptr error;
      try {
        item = produce_();
      } catch (...) {
        error = std::current_exception();
      }
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return pending_.size() < limit_ || stopped_; });
      if (stopped_) return;
      if (item || error) {
        std::promise<Result> promise;
        pending_.push_back(promise.get_future());
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

  std::function<std::optional<Item>()> produce_;
  std::function<Result(Item, int)> work_;
  size_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;                   // for the workers
  std::deque<std::future<Result>> pending_;  // for the caller, in order
  bool finished_ = false;                    // nothing more will be produced
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dtopp
