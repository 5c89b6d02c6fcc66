// Relative to the page, so that it is right under every prefix.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  // Its default sends the address of a public box to swagger.io.
  validatorUrl: null,
});
