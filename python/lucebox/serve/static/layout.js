// Which views are shown. Wide windows have the list, the chat and, unless closed, the server's panel; narrower ones the
// chat and beside it the list or the panel; phones one view.
const wide = matchMedia("(width >= 75em)");
const phone = matchMedia("(width < 48em)");
const { dataset } = document.body;

export function startLayout() {
  try {
    if (localStorage.getItem("panel") === "closed") dataset.panel = "closed";
  } catch {
    // the browser keeps nothing for this page
  }
  for (const button of document.querySelectorAll("nav button")) {
    const { pane } = button.dataset;
    button.addEventListener("click", () => (pane === "live" && !phone.matches ? togglePanel() : showPane(pane)));
  }
  document.getElementById("close-panel").addEventListener("click", () => {
    if (phone.matches) showPane("chat");
    else setPanel(false);
  });
}

// Shows a view; once more, the chat again.
export function showPane(pane) {
  dataset.pane = dataset.pane === pane ? "chat" : pane;
}

function togglePanel() {
  const isShown = dataset.panel === "open" && (wide.matches || dataset.pane !== "chats");
  dataset.pane = "chat";
  setPanel(!isShown);
}

function setPanel(isOpen) {
  dataset.panel = isOpen ? "open" : "closed";
  localStorage.setItem("panel", dataset.panel);
}
