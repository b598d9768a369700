// The field on the page of messages. A message is shown if it has all words, or if half of its text is in what was pasted.
const field = document.getElementById("message-filter");
if (field) {
  const parts = [...document.querySelectorAll("article details")];
  const messages = [...document.querySelectorAll("article details li")].map((item) => {
    const text = item.textContent.trim().toLowerCase();
    const pieces = text.split("…").filter((piece) => piece.length > 3); // shorter ones are in any line
    return { item, text, pieces, length: Math.max(24, pieces.join("").length) };
  });
  const filter = () => {
    const wanted = field.value.trim().toLowerCase().replace(/\s+/g, " ").replace(/^cpudist: /, "");
    const words = wanted.split(" ");
    for (const { item, text, pieces, length } of messages) {
      const found = pieces.filter((piece) => wanted.includes(piece.trim())).join("").length;
      item.hidden = !words.every((word) => text.includes(word)) && found < length / 2;
    }
    for (const part of parts) {
      part.open = wanted !== "" && part.querySelector("li:not([hidden])") !== null;
      part.hidden = part.previousElementSibling.hidden = wanted !== "" && !part.open;
      for (const list of part.querySelectorAll("ul"))
        list.hidden = list.previousElementSibling.hidden = list.querySelector("li:not([hidden])") === null;
    }
  };
  const open = () => {
    const part = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.nextElementSibling;
    if (parts.includes(part)) part.open = true;
  };
  field.hidden = false;
  field.addEventListener("input", filter);
  window.addEventListener("hashchange", open);
  open();
}
