// Light, dark or the system's theme. No module: it runs before the first paint.
{
  const THEMES = ["auto", "light", "dark"];
  const root = document.documentElement;

  function use(theme) {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = theme;
  }

  function kept() {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null; // the browser keeps nothing for this page
    }
  }

  use(THEMES.includes(kept()) ? kept() : "auto");
  addEventListener("DOMContentLoaded", () => {
    use(root.dataset.theme);
    document.getElementById("theme").addEventListener("click", () => {
      use(THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length]);
      localStorage.setItem("theme", root.dataset.theme);
    });
  });
}
