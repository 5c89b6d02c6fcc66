import { loadDescription } from "./key.js";

const place = document.getElementById("redoc");
Redoc.init(await loadDescription(place), {}, place);
