import { authorization, loadDescription } from "./key.js";

await loadDescription(document.getElementById("swagger-ui"));
SwaggerUIBundle({
  // Relative to the page, so that it is right under every prefix.
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  // Its default sends the address of a public box to swagger.io.
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (new URL(request.url, document.baseURI).origin === location.origin) Object.assign(request.headers, authorization());
    return request;
  },
});
