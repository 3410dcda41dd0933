// Follows an answer that grows, unless the user has scrolled up.
const box = document.getElementById("messages");
const NEAR = 60; // pixels from the end
let isFollowing = true;
let top = 0;

box.addEventListener("scroll", () => {
  const isNear = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  if (isNear) isFollowing = true;
  else if (box.scrollTop < top) isFollowing = false; // by the user: text only grows
  top = box.scrollTop;
});
const growth = new ResizeObserver(() => isFollowing && (box.scrollTop = box.scrollHeight));

export function scrollToEnd() {
  isFollowing = true;
  box.scrollTop = box.scrollHeight;
}

// Follows the element of an answer; null: none.
export function follow(element) {
  growth.disconnect();
  if (element) growth.observe(element);
}
