// For `report --serve`: polls for updates every two seconds and shows them at the same scroll position.
function follow(generation) {
  const state = element("span", { class: "live", role: "status" }, "live");
  const update = async () => {
    try {
      const answer = await fetch("update?since=" + generation, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const news = await answer.json();
      if (news.generation !== generation) {
        for (const column of news.columns) extendColumn(column, column.data);
        declareMissing(news.document.columns);
        generation = news.generation;
        const top = scrollY;
        render(news.document);
        scrollTo(0, top);
      }
      state.textContent = news.trouble ?? "live";
      state.classList.toggle("lost", news.trouble !== null);
    } catch {
      state.textContent = "the server does not answer";
      state.classList.add("lost");
    }
    document.querySelector("header h1").append(state);
    setTimeout(update, 2000);
  };
  update();
}

function declareMissing(list) {
  declareColumns(list.filter(column => !columns.has(column.id)));
}

const document_ = JSON.parse(document.getElementById("document").textContent);
declareColumns(document_.columns);
render(document_);
document.addEventListener("DOMContentLoaded", schedule);
if (document_.generation !== null) follow(document_.generation);
