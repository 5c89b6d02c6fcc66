// Copies text, also where the page came over plain HTTP, which the browsers' own interface does not serve.

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelection(text);
  }
}

function copySelection(text) {
  const active = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  area.setAttribute("aria-hidden", "true");
  document.body.append(area);
  area.select();
  try {
    return document.execCommand("copy");
  } finally {
    area.remove();
    active?.focus();
  }
}
